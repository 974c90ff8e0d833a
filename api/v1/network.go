package v1

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// Network is the network policy of a sandbox. The zero value denies everything.
//
// The rules are checked in order, then those of the preset; the first match decides. What no rule matches is denied.
// A rule with a prefix that allows is for connections to addresses only. One that denies also denies names that resolve
// to its addresses.
//
// Addresses that are not public (private, loopback, link-local, metadata services, the host's own) are denied whatever
// the rules say, unless the operator names them in network.floor_except.
type Network struct {
	// Preset is a list of rules by name; empty: NetworkNone.
	Preset NetworkPreset `json:"preset,omitempty" flag:"net" enum:"none,packages,public,all" doc:"network that is allowed. packages: the registries of pip, npm, apt and others. public: public names and addresses, on every port. all: also other names (default none)"`
	// Rules come before those of the preset. On the command line, each action is a flag, and their order counts.
	Rules []NetworkRule `json:"rules,omitempty" flag:"allow,deny,ask" value:"host[:port]" doc:"rules in order, such as 'allow api.github.com' or 'deny *.corp.example:8443'; the first match decides, before the preset"`
}

// NetworkPreset is the name of a list of rules. No other values exist.
type NetworkPreset string

// The presets.
const (
	NetworkNone     NetworkPreset = "none"     // nothing
	NetworkPackages NetworkPreset = "packages" // the registries of package managers
	NetworkPublic   NetworkPreset = "public"   // every public address, on every port
	NetworkAll      NetworkPreset = "all"      // also names that are not public, and whatever network.floor_except opens
)

// NetworkAction is what a rule does with a connection. No other values exist.
type NetworkAction string

// The actions.
const (
	NetworkAllow NetworkAction = "allow"
	NetworkDeny  NetworkAction = "deny"
	NetworkAsk   NetworkAction = "ask" // denied until a person approves
)

// NetworkRule is an action and a target: "allow api.github.com", "deny *.corp.example", "allow 198.51.100.0/24:22".
//
// The action is allow, deny, or ask: then the connection fails, and a later one succeeds once a person has approved it.
// The target is a name (host; *.host for its subdomains; **.host for both), an
// address or a prefix, then optionally a port, a range of ports (8000-8100) or * for all ports. Without ports, allow
// means 80 and 443, and deny all ports. An IPv6 address with a port is in brackets.
type NetworkRule string

// IsNone reports whether the policy denies everything.
func (n Network) IsNone() bool {
	return (n.Preset == "" || n.Preset == NetworkNone) && len(n.Rules) == 0
}

// String describes the policy in one line.
func (n Network) String() string {
	var all []string
	for _, r := range n.Rules {
		all = append(all, string(r))
	}
	return strings.Join(append(all, string(cmp.Or(n.Preset, NetworkNone))), ", then ")
}

// NetworkUse is what a cell or command did with one destination.
type NetworkUse struct {
	Host     string        `json:"host" doc:"name or address that was requested"`
	Port     int           `json:"port,omitempty" doc:"port; left out for a look-up of the name"`
	Action   NetworkAction `json:"action" enum:"allow,deny,ask" doc:"what the policy decided"`
	Rule     string        `json:"rule" doc:"rule or preset that decided"`
	Reason   string        `json:"reason,omitempty" doc:"why a connection was denied or failed, and what would allow it"`
	Approval string        `json:"approval,omitempty" doc:"id of the question to a person about the connection"`
	Count    int           `json:"count" doc:"number of connections or look-ups"`
	Sent     int64         `json:"sent,omitempty" doc:"bytes that were sent"`
	Received int64         `json:"received,omitempty" doc:"bytes that were received"`
	// Unattributed marks uses whose process could not be found while the operation ran.
	Unattributed bool `json:"unattributed,omitempty" doc:"the process that did this is unknown; it happened while the operation ran"`
}

// SessionNetwork is the network policy of a session.
type SessionNetwork struct {
	Network
	// Generation is higher for each later policy. In a request it is a precondition: if the session has another
	// generation, nothing changes, and the error is network_changed.
	Generation uint64 `json:"generation,omitempty" doc:"number of the policy, which each change increases; in a request, change the policy only if it still has this number; left out: change it in any case"`
}

// NetworkCheckRequest asks what the policy decides about a destination.
type NetworkCheckRequest struct {
	Destination string `json:"destination" doc:"name or address, with or without a port, or URL: example.com, example.com:5432, https://example.com/x; without a port and a scheme: port 443"`
}

// NetworkDecision is what a policy decides about a destination.
type NetworkDecision struct {
	Host       string        `json:"host" doc:"name or address"`
	Port       int           `json:"port" doc:"port"`
	Action     NetworkAction `json:"action" enum:"allow,deny,ask" doc:"the decision"`
	Rule       string        `json:"rule" doc:"rule or preset that decides"`
	Reason     string        `json:"reason" doc:"the decision in words"`
	Remedy     string        `json:"remedy,omitempty" doc:"what would allow it"`
	Generation uint64        `json:"generation,omitempty" doc:"number of the policy"`
}

// NetworkEventKind is the kind of a NetworkEvent. No other values exist.
type NetworkEventKind string

// The kinds of network events. Each connection has NetworkEventDenied or NetworkEventFailed, or NetworkEventOpened and
// later NetworkEventClosed.
const (
	NetworkEventLookup NetworkEventKind = "lookup" // a name that is not allowed was looked up
	NetworkEventDenied NetworkEventKind = "denied"
	NetworkEventFailed NetworkEventKind = "failed" // allowed, but not reached; without a port: the name has no address
	NetworkEventOpened NetworkEventKind = "opened"
	NetworkEventClosed NetworkEventKind = "closed" // its action is deny if the host closed it for a reason of the policy
)

// NetworkEvent is an entry of the network log of a session.
type NetworkEvent struct {
	Seq        int64            `json:"seq" doc:"number of the entry, increasing within a session, with gaps"`
	Time       time.Time        `json:"time" doc:"when it happened"`
	Kind       NetworkEventKind `json:"kind" enum:"lookup,denied,failed,opened,closed" doc:"lookup: a name that is not allowed was looked up; failed: the destination could not be reached, or the name has no address"`
	Connection uint64           `json:"connection,omitempty" doc:"number of the connection in its sandbox, by which opened and closed belong together"`
	Host       string           `json:"host,omitempty" doc:"name or address that was requested; left out if the entry stands for several"`
	Port       int              `json:"port,omitempty" doc:"port; left out for a look-up"`
	Address    string           `json:"address,omitempty" doc:"address and port that were dialled"`
	Action     NetworkAction    `json:"action" enum:"allow,deny,ask" doc:"what was decided"`
	Rule       string           `json:"rule,omitempty" doc:"rule, preset or check that decided"`
	Reason     string           `json:"reason,omitempty" doc:"why it was denied or failed, and what would allow it"`
	Generation uint64           `json:"generation,omitempty" doc:"number of the policy that decided"`
	Op         string           `json:"op,omitempty" doc:"id of the cell or command; left out: unknown"`
	Program    string           `json:"program,omitempty" doc:"file name of the program; left out: unknown"`
	Count      int              `json:"count" doc:"how many of them there were: repeated denials share an entry"`
	Sent       int64            `json:"sent,omitempty" doc:"bytes that were sent"`
	Received   int64            `json:"received,omitempty" doc:"bytes that were received"`
}

// Destination returns host:port, or what the entry stands for.
func (e *NetworkEvent) Destination() string {
	switch {
	case e.Host == "":
		return "several destinations"
	case e.Port == 0:
		return e.Host
	}
	return hostPort(e.Host, e.Port)
}

// NetworkLogOptions chooses entries of a network log.
type NetworkLogOptions struct {
	After  int64 // start after this entry
	Follow bool  // continue with later entries
}

// NetworkLogPage is one page of a network log.
type NetworkLogPage struct {
	Entries []NetworkEvent `json:"entries" doc:"entries, oldest first"`
	Next    int64          `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// hostPort joins a name or an address and a port. Package net does the same, but the answer to a hook of a coding agent
// must start without it (internal/startup).
func hostPort(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}
