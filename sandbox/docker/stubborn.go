package docker

import (
	"regexp"
	"time"
)

// stubbornWait is how long an engine may take to kill a container before we do it. It is removed with force then, so nothing is lost if the engine was
// only slow.
const stubbornWait = 3 * time.Second

// goodContainer is an engine's own id of a container, which is nobody else's.
var goodContainer = regexp.MustCompile(`^[0-9a-f]{64}$`)

// insist has a container that is being removed with force killed directly if the engine does not get to it, until stop is called. gVisor's runtime asks the
// sandbox to kill what is in it, and waits for ever for one that hangs; so does the engine then, which can do nothing else with the container meanwhile,
// not even tell of which process it is. Where its processes are not on this machine, or not ours to kill, that is so.
func (b *Backend) insist(container string) (stop func() bool) {
	if !b.local() || !goodContainer.MatchString(container) {
		return func() bool { return true }
	}
	return time.AfterFunc(stubbornWait, func() { killContainer(container) }).Stop
}
