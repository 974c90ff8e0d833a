package docker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestWhatTheGuestMountsItself(t *testing.T) {
	const all = "/home/user /tmp /var/tmp /dev/shm /.recluse/run"
	for name, tt := range map[string]struct {
		level   sandbox.Isolation
		podman  bool
		patch   string
		volumes []Volume
		image   string
		want    string
	}{
		"the host's kernel":            {level: sandbox.IsolationContainer},
		"a kernel of its own":          {level: sandbox.IsolationKernel, want: all},
		"a virtual machine":            {level: sandbox.IsolationVM, want: all},
		"Podman":                       {level: sandbox.IsolationKernel, podman: true},
		"a volume in the home":         {level: sandbox.IsolationKernel, volumes: []Volume{{Name: "v", Path: "/home/user/data"}}, want: "/tmp /var/tmp /dev/shm /.recluse/run"},
		"a volume beside it":           {level: sandbox.IsolationKernel, volumes: []Volume{{Name: "v", Path: "/home/user2"}}, want: all},
		"a volume of the image":        {level: sandbox.IsolationKernel, image: `"/var/tmp/": {}`, want: "/home/user /tmp /dev/shm /.recluse/run"},
		"another size":                 {level: sandbox.IsolationKernel, patch: `{"Tmpfs": {"/tmp": "size=1g"}}`, want: "/home/user /var/tmp /dev/shm /.recluse/run"},
		"one more file system":         {level: sandbox.IsolationKernel, patch: `{"Tmpfs": {"/tmp/more": ""}}`, want: "/home/user /var/tmp /dev/shm /.recluse/run"},
		"a directory of the machine's": {level: sandbox.IsolationKernel, patch: `{"Binds": ["/srv:/dev/shm"]}`, want: "/home/user /tmp /var/tmp /.recluse/run"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Backend{opts: Options{HostConfig: json.RawMessage(tt.patch)}}
			p := &plan{facts: &dockerengine.Facts{Level: tt.level, Podman: tt.podman}, volumes: tt.volumes}
			p.User, p.Spec.Limits = v1.DefaultUser, sandbox.Limits{}.WithDefaults()
			if err := json.Unmarshal([]byte(`{"Config": {"Volumes": {`+tt.image+`}}}`), &p.image.InspectResponse); err != nil {
				t.Fatal(err)
			}
			hc, err := b.profile(p)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range p.guestTmpfs {
				got = append(got, m.Path)
				if m.Inodes == 0 || m.Size == 0 {
					t.Errorf("without a limit: %+v", m)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if slices.Contains(hc.CapAdd, "CAP_SYS_ADMIN") != (tt.want != "") {
				t.Errorf("capabilities %q", hc.CapAdd)
			}
		})
	}
}
