package collector

import (
	"os"
	"runtime/metrics"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheUsualCollectorComesBack(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("somebody has set it")
	}
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		metrics.Read(percent)
		if percent[0].Value.Uint64() == 100 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is still at %d", percent[0].Value.Uint64())
		}
	}
}
