package main

import (
	"bytes"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestATenantIsShownWithAllItsBounds(t *testing.T) {
	tenant := v1.Tenant{Name: "team-a"}
	for _, f := range tenant.Quota.Fields() {
		if err := f.Set("1"); err != nil {
			t.Fatalf("%s: %v", f.Flag, err)
		}
	}
	var out bytes.Buffer
	if err := (&app{stdout: &out}).printTenant(tenant); err != nil {
		t.Fatal(err)
	}
	for _, f := range tenant.Quota.Fields() {
		if !strings.Contains(out.String(), "\n"+f.Flag+" ") {
			t.Errorf("no %s:\n%s", f.Flag, out.String())
		}
	}
}
