package sandbox

import (
	"reflect"
	"testing"

	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/testfill"
)

func TestVerdictTakesEveryFieldOfTheGuest(t *testing.T) {
	w := &wire.Verdict{Displays: [][]byte{[]byte("{}"), []byte("{}")}}
	testfill.Fill(w)
	fields := w.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !w.ProtoReflect().Has(f) {
			t.Errorf("this test does not set %s", f.Name())
		}
	}
	v := reflect.ValueOf(*verdict(w))
	for i := range v.NumField() {
		if v.Type().Field(i).Name == "Network" {
			continue // the host knows it, see withNetwork
		}
		if v.Field(i).IsZero() {
			t.Errorf("%s is not converted", v.Type().Field(i).Name)
		}
	}
}
