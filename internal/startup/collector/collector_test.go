package collector

import (
	"math"
	"os"
	"runtime/metrics"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheUsualCollectorComesBack(t *testing.T) {
	want := uint64(100)
	switch set := os.Getenv("GOGC"); set { // then it is left alone
	case "":
	case "off":
		want = math.MaxUint64
	default:
		n, err := strconv.ParseUint(set, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		want = n
	}
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		metrics.Read(percent)
		if percent[0].Value.Uint64() == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is still at %d", percent[0].Value.Uint64())
		}
	}
}
