package sandbox

import (
	"encoding/json"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

var endings = map[wire.Ending]Ending{
	wire.Ending_ENDING_EXIT:      v1.EndedExit,
	wire.Ending_ENDING_SIGNAL:    v1.EndedSignal,
	wire.Ending_ENDING_TIMEOUT:   v1.EndedTimeout,
	wire.Ending_ENDING_CANCELLED: v1.EndedCancelled,
	wire.Ending_ENDING_MEMORY:    v1.EndedMemory,
	wire.Ending_ENDING_START:     v1.EndedStart,
	wire.Ending_ENDING_KILLED:    v1.EndedKilled,
}

// maxSurvivors is how many surviving processes a verdict lists.
const maxSurvivors = 64

// verdict converts a verdict that the guest has sent. Root inside can forge what it says, but not values that no
// verdict has.
func verdict(w *wire.Verdict) *Verdict {
	v := &Verdict{
		ID:              w.Id,
		Ended:           endings[w.Ending],
		ExitCode:        int(w.ExitCode),
		Signal:          syscall.Signal(w.Signal),
		Stdout:          output(w.Stdout),
		Stderr:          output(w.Stderr),
		Started:         time.Unix(0, w.StartedUnixNs),
		Wall:            max(0, time.Duration(w.WallNs)),
		CPU:             max(0, time.Duration(w.CpuNs)),
		PeakMemory:      max(0, w.PeakMemory),
		MemoryKills:     max(0, int(w.MemoryKills)),
		SurvivorsTotal:  max(0, int(w.SurvivorsTotal)),
		StateKept:       w.StateKept,
		StateLostBefore: w.StateLostBefore,
		StartError:      w.StartError,
		DisplaysDropped: max(0, int(w.DisplaysDropped)),
		Metadata:        w.Metadata,
	}
	for _, p := range w.Survivors[:min(maxSurvivors, len(w.Survivors))] {
		v.Survivors = append(v.Survivors, Process{PID: int(p.Pid), Command: p.Command, Killed: p.Killed})
	}
	if e := w.CellError; e != nil {
		v.Error = &CellError{Name: e.Name, Value: e.Value, Traceback: e.Traceback, Line: int(e.Line)}
	}
	for i, raw := range w.Displays {
		b, err := decodeBundle(raw)
		if err != nil {
			v.DisplaysDropped++
			continue
		}
		if w.HasResult && i == len(w.Displays)-1 {
			v.Result = &b
		} else {
			v.Displays = append(v.Displays, b)
		}
	}
	return v
}

func output(k *wire.Kept) Output {
	return Output{
		Produced: max(0, k.GetProduced()),
		Head:     k.GetHead(),
		Tail:     k.GetTail(),
		File:     k.GetFile(),
		InFile:   max(0, k.GetFileBytes()),
	}
}

// decodeBundle decodes a displayed value from the guest. Metadata that is not a JSON object is dropped: the code that
// displays a value can set anything.
func decodeBundle(raw []byte) (Bundle, error) {
	var in struct {
		Data     v1.Formats      `json:"data"`
		Metadata json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Bundle{}, err
	}
	b := Bundle{Data: in.Data}
	if json.Unmarshal(in.Metadata, &b.Metadata) != nil || len(b.Metadata) == 0 {
		b.Metadata = nil
	}
	return b, nil
}
