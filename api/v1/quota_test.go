package v1

import (
	"strings"
	"testing"
	"time"
)

func TestQuotaNamesWhatIsExceededAndWhatIsLeft(t *testing.T) {
	q := Quota{Memory: new(int64(4 << 30)), CPUs: new(2.5), Sessions: new(3), MaxAge: new(Duration(time.Hour)), Runs: new(NoLimit)}
	for name, tt := range map[string]struct {
		used, more Quota
		want       string // of the error
	}{
		"within":            {used: Quota{Sessions: new(2)}, more: Quota{Sessions: new(1), CPUs: new(2.5)}},
		"no bound":          {more: Quota{Disk: new(int64(1 << 50)), Runs: new(1000)}},
		"too many":          {used: Quota{Sessions: new(3)}, more: Quota{Sessions: new(1)}, want: "sessions: limit 3, 0 left, 1 requested"},
		"too much":          {used: Quota{CPUs: new(1.0)}, more: Quota{CPUs: new(2.0)}, want: "cpus: limit 2.5, 1.5 left, 2 requested"},
		"too long":          {more: Quota{MaxAge: new(Duration(2 * time.Hour))}, want: "max_age: limit 1h, 1h left, 2h requested"},
		"unlimited":         {more: Quota{MaxAge: new(Duration(NoLimit))}, want: "none requested"},
		"already above":     {used: Quota{Memory: new(int64(5 << 30))}, more: Quota{Memory: new(int64(1))}, want: "0 left"},
		"nothing requested": {used: Quota{Memory: new(int64(5 << 30))}},
		"zero more":         {used: Quota{Memory: new(int64(5 << 30))}, more: Quota{Memory: new(int64(0)), Sessions: new(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			err := q.Check("tenant a", tt.used, tt.more)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if CodeOf(err) != CodeQuotaExceeded || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "tenant a") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
