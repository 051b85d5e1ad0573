package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// call calls the tool through the code that answers a node, without a node and without NATS.
func call(desk *Desk, id, args string, report func(any)) map[string]any {
	body := fmt.Sprintf(`{"v":1,"call_id":%q,"agent_id":"a","session_id":"s","team_id":"t","epoch":1,"deadline_ms":60000,"args":%s}`, id, args)
	said, _ := json.Marshal(desk.Answer(tools[0], []byte(body), report))
	var reply map[string]any
	json.Unmarshal(said, &reply)
	return reply
}

func TestItSortsAndReportsProgress(t *testing.T) {
	reports := 0
	reply := call(NewDesk(), "c", `{"text":"to be or not"}`, func(any) { reports++ })
	if reply["ok"] != "be not or to" || reports != steps {
		t.Fatalf("%v after %d reports", reply, reports)
	}
}

func TestWhatItCannotDoIsAnErrorForTheModel(t *testing.T) {
	for args, words := range map[string]string{
		`{"text":" "}`: "no words", `{"text":7}`: "do not fit", `{}`: "`text` is missing", `{"text":"a","more":1}`: "more",
	} {
		reply := call(NewDesk(), "c", args, func(any) {})
		if text, _ := reply["error"].(string); !strings.Contains(text, words) {
			t.Errorf("%s: %v", args, reply)
		}
	}
}

func TestItStopsWhenTheAnswerIsNoLongerWanted(t *testing.T) {
	desk, replies := NewDesk(), make(chan map[string]any)
	running := make(chan bool, steps)
	go func() { replies <- call(desk, "slow", `{"text":"a","seconds":60}`, func(any) { running <- true }) }()
	<-running
	desk.Cancel("slow")
	select {
	case reply := <-replies:
		if text, _ := reply["error"].(string); !strings.Contains(text, "cancelled at step") {
			t.Fatal(reply)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("it runs on")
	}
}
