package session

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestDocumentedDefaultsAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		of          reflect.Type
		field, says string
	}{
		{reflect.TypeFor[v1.Policy](), "Idle", fmt.Sprintf("%s by default", v1.Duration(DefaultIdle))},
		{reflect.TypeFor[v1.ExtendRequest](), "By", fmt.Sprintf("left out: %s", v1.Duration(DefaultExtension))},
		{reflect.TypeFor[v1.RunFields](), "Timeout", fmt.Sprintf("left out: %s", v1.Duration(v1.DefaultTimeout))},
		{reflect.TypeFor[v1.RunFields](), "InlineBytes", fmt.Sprintf("left out: %d", v1.DefaultInlineBytes)},
		{reflect.TypeFor[v1.RunFields](), "SpoolBytes", fmt.Sprintf("left out: %d", v1.DefaultSpoolBytes)},
		{reflect.TypeFor[v1.Quota](), "Spend", fmt.Sprintf("within %d days", spendWindow/day)},
	} {
		f, ok := tt.of.FieldByName(tt.field)
		if doc := f.Tag.Get("doc"); !ok || !strings.Contains(doc, tt.says) {
			t.Errorf("%s.%s does not contain %q: %s", tt.of, tt.field, tt.says, doc)
		}
	}
}
