//go:build linux

package operation

import (
	"maps"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func TestAListTellsNoLongMetadata(t *testing.T) {
	long := strings.Repeat("x", listedMetadata)
	got := brief(&wire.Verdict{Metadata: map[string]string{"a": "1", "long": long, "z": "2"}}).Metadata
	if want := map[string]string{"a": "1", "z": "2"}; !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
