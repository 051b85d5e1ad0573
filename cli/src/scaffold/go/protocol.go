package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

const (
	atOnce = 64               // the most calls that run or wait; further calls are refused
	agents = 10_000           // the most agents whose epoch is remembered
	drain  = 25 * time.Second // how long running calls may take to end at SIGTERM

	confirm = 5 * time.Second // how long the server may take to confirm a request
)

// Tool is a function that agents can call.
type Tool struct {
	Name, Description, Effect, Parameters string
	Run                                   func(context.Context, *Call, json.RawMessage) (string, error)
}

// Call is one call of a tool, with the identity of the caller.
type Call struct {
	V          int             `json:"v"`
	CallID     string          `json:"call_id"`
	AgentID    string          `json:"agent_id"`
	SessionID  string          `json:"session_id"`
	TeamID     string          `json:"team_id"`
	Epoch      *int64          `json:"epoch"`
	DeadlineMS *int64          `json:"deadline_ms"`
	Args       json.RawMessage `json:"args"`
	report     func(any)
}

// Progress reports the progress of the call.
func (call *Call) Progress(message string, percent float64) {
	call.report(map[string]any{"v": 1, "progress": map[string]any{"message": message, "percent": percent}})
}

// Fit parses arguments, and refuses those that the tool does not have.
func Fit(raw json.RawMessage, args any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(args); err != nil {
		return fmt.Errorf("the arguments do not fit: %w", err)
	}
	return nil
}

// Desk answers calls, independent of the transport. A test can use it without NATS.
type Desk struct {
	lock    sync.Mutex
	running map[string]context.CancelFunc
	epochs  map[string]int64
	tasks   sync.WaitGroup
}

func NewDesk() *Desk {
	return &Desk{running: map[string]context.CancelFunc{}, epochs: map[string]int64{}}
}

// Cancel ends a call whose answer is no longer wanted.
func (desk *Desk) Cancel(callID string) {
	desk.lock.Lock()
	defer desk.lock.Unlock()
	if cancel, found := desk.running[callID]; found {
		cancel()
	}
}

// Answer runs a call and returns the reply. Progress is passed to report.
func (desk *Desk) Answer(tool Tool, body []byte, report func(any)) any {
	text, err := desk.run(tool, body, report)
	if err != nil {
		return map[string]any{"v": 1, "error": cmp.Or(err.Error(), "the tool failed")}
	}
	return map[string]any{"v": 1, "ok": text}
}

func (desk *Desk) run(tool Tool, body []byte, report func(any)) (text string, err error) {
	call := Call{report: report}
	if err := json.Unmarshal(body, &call); err != nil {
		return "", fmt.Errorf("malformed request: %w", err)
	}
	complete := call.CallID != "" && call.AgentID != "" && call.Epoch != nil && call.DeadlineMS != nil && call.Args != nil
	if !complete || call.V != 1 {
		return "", errors.New("malformed request: it is no call of version 1 of the protocol")
	}
	left := time.Duration(min(max(*call.DeadlineMS, 0), 86_400_000)) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	if err := desk.begin(&call, cancel); err != nil {
		return "", err
	}
	defer desk.end(call.CallID)
	defer func() {
		if panicked := recover(); panicked != nil {
			text, err = "", fmt.Errorf("the tool failed: %v", panicked)
		}
	}()
	return tool.Run(ctx, &call, call.Args)
}

func (desk *Desk) begin(call *Call, cancel context.CancelFunc) error {
	desk.lock.Lock()
	defer desk.lock.Unlock()
	if latest := desk.epochs[call.AgentID]; *call.Epoch < latest {
		return fmt.Errorf("stale epoch %d: agent %s has called with %d", *call.Epoch, call.AgentID, latest)
	}
	if _, known := desk.epochs[call.AgentID]; !known && len(desk.epochs) >= agents {
		for agent := range desk.epochs {
			delete(desk.epochs, agent)
			break
		}
	}
	desk.epochs[call.AgentID] = *call.Epoch
	if _, found := desk.running[call.CallID]; found {
		return errors.New("in progress")
	}
	if len(desk.running) >= atOnce {
		return fmt.Errorf("busy: %d calls run here; try again later", len(desk.running))
	}
	desk.running[call.CallID] = cancel
	return nil
}

func (desk *Desk) end(callID string) {
	desk.lock.Lock()
	defer desk.lock.Unlock()
	delete(desk.running, callID)
}

// Serve offers the tools over NATS until SIGTERM or an interrupt, and then finishes the running calls.
func Serve(name, version string, tools []Tool) error {
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	connected := make(chan struct{}, 1)
	tell := func(*nats.Conn) {
		select {
		case connected <- struct{}{}:
		default:
		}
	}
	options, err := user()
	if err != nil {
		return err
	}
	options = append(options, nats.Name("sidecar "+name), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250*time.Millisecond), nats.PingInterval(2*time.Second), nats.ConnectHandler(tell), nats.ReconnectHandler(tell))
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), options...)
	if err != nil {
		return fmt.Errorf("cannot connect to NATS: %w", err)
	}
	defer nc.Close()
	if !nc.IsConnected() {
		log.Print("NATS does not answer yet; trying again")
	}
	select {
	case <-connected:
	case <-stop:
		return nil
	}
	served := &server{nc: nc, desk: NewDesk(), id: nats.NewInbox()[len(nats.InboxPrefix):], name: name, version: version}
	if served.prefix = os.Getenv("PLANCK_NATS_SUBJECT_PREFIX"); served.prefix != "" {
		served.dot = served.prefix + "."
	}
	return served.until(stop, connected, tools)
}

// server is one instance of the sidecar on NATS.
type server struct {
	nc                             *nats.Conn
	desk                           *Desk
	id, name, version, prefix, dot string
	endpoints                      []any
	requests, discovery            []*nats.Subscription
}

func (server *server) until(stop <-chan os.Signal, connected <-chan struct{}, tools []Tool) error {
	_, err := server.nc.Subscribe(server.dot+"cancel."+server.name, func(message *nats.Msg) {
		var cancel struct {
			CallID string `json:"call_id"`
		}
		if json.Unmarshal(message.Data, &cancel) == nil {
			server.desk.Cancel(cancel.CallID)
		}
	})
	for _, tool := range tools {
		err = errors.Join(err, server.offer(tool))
	}
	for _, subject := range []string{"$SRV.INFO", "$SRV.INFO." + server.name, "$SRV.INFO." + server.name + "." + server.id} {
		subscription, failed := server.nc.Subscribe(subject, server.describe)
		server.discovery, err = append(server.discovery, subscription), errors.Join(err, failed)
	}
	if err = errors.Join(err, server.nc.FlushTimeout(confirm)); err != nil {
		return fmt.Errorf("cannot serve: %w", err)
	}
	log.Printf("serving %s %s at %s", server.name, server.version, server.nc.ConnectedAddr())
	server.tell("hello")
	for {
		select {
		case <-connected:
			server.tell("hello")
		case <-stop:
			go func() { <-stop; os.Exit(1) }()
			return server.leave()
		}
	}
}

// leave accepts no more calls, and finishes those that run.
func (server *server) leave() error {
	log.Printf("%s takes no more calls and finishes those that run", server.name)
	for _, subscription := range server.discovery {
		subscription.Unsubscribe()
	}
	server.tell("bye")
	for _, subscription := range server.requests {
		subscription.Drain()
	}
	until := time.Now().Add(confirm)
	for slices.ContainsFunc(server.requests, (*nats.Subscription).IsValid) && time.Now().Before(until) {
		time.Sleep(5 * time.Millisecond) // until the received requests are handled
	}
	finished := make(chan struct{})
	go func() { server.desk.tasks.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(drain):
		log.Print("some calls did not end in time")
	}
	return server.nc.FlushTimeout(confirm)
}

// offer subscribes to the calls of a tool and answers each in a goroutine of its own.
func (server *server) offer(tool Tool) error {
	subject := server.dot + "tool." + server.name + "." + tool.Name
	about := map[string]string{"kind": "tool", "description": tool.Description, "parameters": tool.Parameters, "effect": tool.Effect}
	server.endpoints = append(server.endpoints, map[string]any{"name": tool.Name, "subject": subject, "queue_group": server.name, "metadata": about})
	subscription, err := server.nc.QueueSubscribe(subject, server.name, func(message *nats.Msg) {
		if !admits(message.Reply) {
			return
		}
		server.desk.tasks.Add(1)
		go func() {
			defer server.desk.tasks.Done()
			report := func(said any) { server.send(message.Reply, said) }
			server.send(message.Reply, server.desk.Answer(tool, message.Data, report))
		}()
	})
	server.requests = append(server.requests, subscription)
	return err
}

func (server *server) describe(message *nats.Msg) {
	if admits(message.Reply) {
		server.send(message.Reply, map[string]any{
			"type": "io.nats.micro.v1.info_response", "name": server.name, "id": server.id, "version": server.version, "description": "",
			"metadata": map[string]string{"planck": "1", "prefix": server.prefix}, "endpoints": server.endpoints,
		})
	}
}

func (server *server) tell(kind string) {
	presence := map[string]any{"v": 1, "type": kind, "sidecar": server.name, "instance": server.id}
	server.send(server.dot+"sidecar."+server.name, presence)
}

// send publishes an answer. If it is too large for NATS, an error is published instead.
func (server *server) send(subject string, said any) {
	body, err := json.Marshal(said)
	if err == nil {
		err = server.nc.Publish(subject, body)
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		why := fmt.Sprintf("the answer has %d bytes, and NATS carries at most %d", len(body), server.nc.MaxPayload())
		body, _ = json.Marshal(map[string]any{"v": 1, "error": why})
		err = server.nc.Publish(subject, body)
	}
	if err != nil {
		log.Printf("cannot publish: %v", err)
	}
}

// admits returns whether a reply subject is an inbox. A sidecar may publish to more subjects than its callers, and a caller could
// otherwise make it publish commands to another program.
func admits(reply string) bool {
	if rest, found := strings.CutPrefix(reply, "_GR_."); found {
		// The server removes the first three words again.
		words := strings.SplitN(rest, ".", 3)
		return len(words) == 3 && admits(words[2])
	}
	return strings.HasPrefix(reply, "_R_.") || strings.HasPrefix(reply, "_INBOX") && strings.Contains(reply, ".")
}

// user returns the credentials from the environment, in the same variables as for a node.
func user() ([]nats.Option, error) {
	var options []nats.Option
	if file := os.Getenv("NATS_CREDS"); file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	if seed := os.Getenv("NATS_NKEY"); seed != "" {
		if strings.ContainsAny(seed, "/.") {
			read, err := os.ReadFile(seed)
			if err != nil {
				return nil, fmt.Errorf("NATS_NKEY: %w", err)
			}
			seed = string(read)
		}
		pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(seed)))
		if err != nil {
			return nil, fmt.Errorf("NATS_NKEY is neither a seed nor the path of a file with one: %w", err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			return nil, err
		}
		options = append(options, nats.Nkey(public, pair.Sign))
	}
	if file := os.Getenv("PLANCK_NATS_TLS_CA"); file != "" {
		options = append(options, nats.RootCAs(file))
	}
	if file := os.Getenv("PLANCK_NATS_TLS_CERT"); file != "" {
		options = append(options, nats.ClientCert(file, os.Getenv("PLANCK_NATS_TLS_KEY")))
	}
	if inbox := os.Getenv("PLANCK_NATS_INBOX_PREFIX"); inbox != "" {
		options = append(options, nats.CustomInboxPrefix(inbox))
	}
	return options, nil
}
