// The sidecar SIDECAR_NAME. The tools are in this file; protocol.go implements the protocol and answers their calls.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const steps = 10

var tools = []Tool{{
	Name:        "sort_words",
	Description: "Sorts the words of a text.",
	Effect:      "pure",
	// The JSON Schema that the model sees.
	Parameters: `{
		"type": "object",
		"required": ["text"],
		"additionalProperties": false,
		"properties": {
			"text": {"type": "string", "description": "The text whose words to sort"},
			"seconds": {"type": "number", "minimum": 0, "maximum": 3600, "description": "How long to take over it"}
		}
	}`,
	Run: sortWords,
}}

// sortWords sorts words. The arguments are as the model wrote them and may not fit the schema. An error is shown to the model.
// The context ends when the answer is no longer wanted, or when the deadline of the call has passed.
func sortWords(ctx context.Context, call *Call, raw json.RawMessage) (string, error) {
	var args struct {
		Text    *string `json:"text"`
		Seconds float64 `json:"seconds"`
	}
	if err := Fit(raw, &args); err != nil {
		return "", err
	}
	if args.Text == nil {
		return "", errors.New("the arguments do not fit: `text` is missing")
	}
	pause := time.Duration(min(max(args.Seconds, 0), 3600) / steps * float64(time.Second))
	for step := range steps {
		// A progress report also extends the time for which the node waits.
		call.Progress(fmt.Sprintf("step %d of %d", step+1, steps), float64(100*step/steps))
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("cancelled at step %d", step+1)
		case <-time.After(pause):
		}
	}
	words := strings.Fields(*args.Text)
	if len(words) == 0 {
		return "", errors.New("the text has no words; give one that has")
	}
	slices.Sort(words)
	return strings.Join(words, " "), nil
}

func main() {
	if err := Serve("SIDECAR_NAME", "0.1.0", tools); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
