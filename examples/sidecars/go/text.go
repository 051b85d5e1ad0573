// A sidecar on the bare NATS client: a tool, and everything the protocol asks of one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const name = "text-go"
const schema = `{"type":"object","required":["text","times"],"properties":{"text":{"type":"string"},"times":{"type":"integer"},"seconds":{"type":"number"}}}`

type call struct {
	CallID  string `json:"call_id"`
	AgentID string `json:"agent_id"`
	Epoch   int64
	Left    time.Duration `json:"deadline_ms"`
	Args    struct {
		Text    *string
		Times   *int
		Seconds float64
	}
}

var nc *nats.Conn
var lock sync.Mutex
var running, epochs = map[string]context.CancelFunc{}, map[string]int64{}

func send(subject string, said map[string]any) {
	said["v"] = 1
	body, _ := json.Marshal(said)
	if int64(len(body)) > nc.MaxPayload() {
		body = []byte(`{"v":1,"error":"the answer is too large"}`)
	}
	nc.Publish(subject, body)
}

func begin(body []byte) (c call, ctx context.Context, err error) {
	if err = json.Unmarshal(body, &c); err != nil || c.CallID == "" || c.Args.Text == nil || c.Args.Times == nil || *c.Args.Times < 0 {
		return c, nil, fmt.Errorf("expected a call with a text, and how often: %v", err)
	}
	lock.Lock()
	defer lock.Unlock()
	if running[c.CallID] != nil || c.Epoch < epochs[c.AgentID] {
		return c, nil, fmt.Errorf("%s", map[bool]string{true: "in progress", false: "stale epoch"}[running[c.CallID] != nil])
	}
	ctx, running[c.CallID] = context.WithTimeout(context.Background(), c.Left*time.Millisecond)
	epochs[c.AgentID] = c.Epoch
	return c, ctx, nil
}

func answer(reply string, body []byte) {
	if reply == "" {
		return
	}
	c, ctx, err := begin(body)
	if err != nil {
		send(reply, map[string]any{"error": err.Error()})
		return
	}
	defer func() { lock.Lock(); running[c.CallID](); delete(running, c.CallID); lock.Unlock() }()
	for step := 0; step < 10 && c.Args.Seconds > 0; step++ {
		send(reply, map[string]any{"progress": map[string]any{"message": "waiting", "percent": step * 10}})
		select {
		case <-time.After(time.Duration(c.Args.Seconds * float64(time.Second) / 10)):
		case <-ctx.Done():
			send(reply, map[string]any{"error": ctx.Err().Error()})
			return
		}
	}
	send(reply, map[string]any{"ok": strings.Repeat(*c.Args.Text, *c.Args.Times)})
}

func main() {
	closed, stop, working := make(chan bool), make(chan os.Signal, 1), sync.WaitGroup{}
	nc, _ = nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	calls, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		panic(err)
	}
	nc.Subscribe("cancel."+name, func(m *nats.Msg) {
		var c call
		json.Unmarshal(m.Data, &c)
		lock.Lock()
		defer lock.Unlock()
		if cancel := running[c.CallID]; cancel != nil {
			cancel()
		}
	})
	service, _ := micro.AddService(calls, micro.Config{Name: name, Version: "1.0.0", QueueGroup: name, Metadata: map[string]string{"planck": "1"}})
	take := func(r micro.Request) { working.Go(func() { answer(r.Reply(), r.Data()) }) }
	service.AddEndpoint("repeat", micro.HandlerFunc(take), micro.WithEndpointSubject("tool."+name+".repeat"), micro.WithEndpointMetadata(
		map[string]string{"kind": "tool", "description": "Repeats a text.", "parameters": schema, "effect": "pure"}))
	calls.Flush()
	told := func(what string) {
		send("sidecar."+name, map[string]any{"type": what, "sidecar": name, "instance": service.Info().ID})
	}
	told("hello")
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	told("bye")
	calls.Drain()
	<-closed
	working.Wait()
	nc.Flush()
}
