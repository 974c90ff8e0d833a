package session

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestAFloodOfDenialsMakesFewEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // a timer of the window also records entries
		var got []v1.NetworkEvent
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(got)
		}
		r := &repeats{}
		add := func(host string) {
			time.Sleep(time.Millisecond)
			e := v1.NetworkEvent{Time: time.Now(), Action: v1.NetworkDeny, Host: host, Port: 443, Count: 1}
			r.add(e, time.Minute, 3, func(e v1.NetworkEvent) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, e)
			})
		}
		for n := range 1000 {
			add("a.test")
			add(fmt.Sprintf("%d.test", n))
		}
		if n := count(); n != 3 {
			t.Fatalf("%d entries at once", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		sum := 0
		for _, e := range got {
			sum += e.Count
		}
		if count() != 5 || sum != 2000 || got[3].Host != "a.test" || got[3].Count != 999 ||
			got[4].Destination() != "several destinations" || got[4].Count != 998 {
			t.Errorf("%d entries for %d denials: %+v", len(got), sum, got[3:])
		}
		add("a.test")
		if count() != 6 || got[5].Count != 1 {
			t.Errorf("an entry in the next window: %+v", got[5:])
		}
		r.flush()
		if count() != 6 {
			t.Errorf("an entry without repetitions was recorded again: %+v", got[6:])
		}
	})
}

func TestTheNetworkLogKeepsTheLatestEntries(t *testing.T) {
	var l networkLog
	for n := range 3 * networkRing {
		l.append(v1.NetworkEvent{Port: n})
	}
	list, _ := l.after(0)
	if len(list) > networkRing || list[len(list)-1].Port != 3*networkRing-1 {
		t.Errorf("%d entries, the last of which is %+v", len(list), list[len(list)-1])
	}
	for i := range list[1:] {
		if list[i+1].Seq <= list[i].Seq {
			t.Fatalf("entry %d has number %d after %d", i+1, list[i+1].Seq, list[i].Seq)
		}
	}
}
