package store

import (
	"testing"
	"time"
)

func TestQuestionsOutliveTheProgram(t *testing.T) {
	t.Parallel()
	dir, ctx := t.TempDir(), t.Context()
	s := open(t, dir)
	now := time.Now()
	for _, a := range []Approval{{"late", now.Add(time.Hour), []byte("l")}, {"early", now.Add(time.Minute), []byte("e")}, {"gone", now, nil}, {"early", now.Add(2 * time.Minute), []byte("E")}} {
		if a.Data == nil {
			a.Data = []byte{}
		}
		must(t, s.SaveApproval(ctx, a))
	}
	must(t, s.DropApprovals(ctx, "gone", "never was"))
	must(t, s.Close())
	got, err := open(t, dir).FindApprovals(ctx)
	must(t, err)
	if len(got) != 2 || got[0].ID != "early" || string(got[0].Data) != "E" || !got[0].Expires.Equal(now.Add(2*time.Minute)) || got[1].ID != "late" {
		t.Errorf("%+v", got)
	}
}
