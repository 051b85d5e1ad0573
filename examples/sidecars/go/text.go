// A sidecar on the bare NATS client, with a tool that answers at once. A slow tool has more duties: see ../typescript.
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const name, tool = "text-go", "tool.text-go.shout"
const schema = `{"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}`

var epochs = map[string]int64{} // the latest epoch of each agent; needs no lock because requests are handled one after the other

func shout(request micro.Request) {
	var call struct {
		Agent string `json:"agent_id"`
		Epoch int64
		Args  struct{ Text *string }
	}
	answer := map[string]any{"v": 1}
	if json.Unmarshal(request.Data(), &call) != nil || call.Args.Text == nil {
		answer["error"] = "expected a call with a text"
	} else if call.Epoch < epochs[call.Agent] {
		answer["error"] = "stale epoch: another node has taken over this agent"
	} else {
		epochs[call.Agent] = call.Epoch
		answer["ok"] = strings.ToUpper(*call.Args.Text)
	}
	if request.RespondJSON(answer) != nil {
		request.RespondJSON(map[string]any{"v": 1, "error": "the answer is too large"})
	}
}

func main() {
	stop, closed := make(chan os.Signal, 1), make(chan bool)
	signal.Notify(stop, syscall.SIGTERM)
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		panic(err)
	}
	service, _ := micro.AddService(nc, micro.Config{Name: name, Version: "1.0.0", QueueGroup: name, Metadata: map[string]string{"planck": "1"}})
	about := map[string]string{"kind": "tool", "description": "Shouts a text.", "parameters": schema, "effect": "pure"}
	service.AddEndpoint("shout", micro.HandlerFunc(shout), micro.WithEndpointSubject(tool), micro.WithEndpointMetadata(about))
	presence := map[string]any{"v": 1, "type": "hello", "sidecar": name, "instance": service.Info().ID}
	hello, _ := json.Marshal(presence)
	nc.Publish("sidecar."+name, hello)
	<-stop
	presence["type"] = "bye"
	bye, _ := json.Marshal(presence)
	nc.Publish("sidecar."+name, bye)
	nc.Drain() // requests under way are still answered
	<-closed
}
