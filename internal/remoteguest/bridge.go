package remoteguest

import "fmt"

// Some services cannot connect to a running process again. There, named pipes are the guest's input and output, and
// each connection is a process of its own, a bridge that copies between them and its own input and output. A new bridge
// ends the previous one, which would take output that belongs to the new one. What that loses is repeated (package
// carrier).

// ExitEnded is the status of a bridge if the guest has ended. The bridge's error output then has the reason.
const ExitEnded = 112

const pipesDir = uploadDir + "/pipes"

// DetachArgs returns the command that starts a script of Provider.Start with named pipes. It ends at once.
func DetachArgs(script string) []string {
	return []string{"/bin/sh", "-c", fmt.Sprintf(`umask 077
mkdir -p %[1]s && cd %[1]s && mkfifo in out || exit 1
setsid /bin/sh -c '/bin/sh -c "$0" <>in 1<>out 2>err; echo $? >exit.new; mv exit.new exit' "$0" </dev/null >/dev/null 2>&1 &
`, pipesDir), script}
}

// BridgeArgs returns the command of a bridge.
func BridgeArgs() []string {
	return []string{"/bin/sh", "-c", fmt.Sprintf(`cd %[1]s || exit 1
ended() { echo "exit status $(cat exit): $(tail -n 1 err)" >&2; exit %[2]d; }
[ -f exit ] && ended
for p in $(cat bridge 2>/dev/null); do
	[ "$(readlink /proc/$p/cwd)" = %[1]s ] && kill -9 $p 2>/dev/null
done
exec 3<&0
cat <&3 >in & w=$!
cat <out & r=$!
echo "$w $r $$" >bridge.$$ && mv bridge.$$ bridge
wait $r
kill -9 $w 2>/dev/null
n=0
while [ ! -f exit ] && [ $n -lt 20 ]; do sleep 0.1; n=$((n+1)); done
[ -f exit ] && ended
exit 1
`, pipesDir, ExitEnded)}
}
