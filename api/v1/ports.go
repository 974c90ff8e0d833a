package v1

import "time"

// Port is a TCP port on which a program in a sandbox listens.
type Port struct {
	Port      int    `json:"port" doc:"number of the port"`
	Address   string `json:"address" doc:"address on which the program listens; 0.0.0.0 and :: are all addresses"`
	PID       int    `json:"pid,omitempty" doc:"process that listens; left out: unknown"`
	Command   string `json:"command,omitempty" doc:"command line of the process"`
	Operation string `json:"operation,omitempty" doc:"ID of the running operation that the process belongs to; left out: it has ended"`
}

// PortPage is a page of a list of ports.
type PortPage struct {
	Ports []Port `json:"ports" doc:"ports on which programs listen, sorted by number"`
	Next  string `json:"next,omitempty" doc:"value of after for the next page; empty: this is the last"`
}

// PortLinkRequest requests a link to a port.
type PortLinkRequest struct {
	ExpiresIn Duration `json:"expires_in,omitzero" doc:"time until the link expires, at most 720h; left out: 1h"`
}

// PortLink is a link with which a browser can use a port until it expires.
type PortLink struct {
	URL     string    `json:"url" doc:"address to open; everyone who has it can use the port"`
	Port    int       `json:"port" doc:"port inside"`
	Session string    `json:"session" doc:"name of the session"`
	Expires time.Time `json:"expires" doc:"when the link expires; it also ends with the session and with the key that created it"`
}

// The life of a link to a port.
const (
	DefaultPortLink = time.Hour
	MaxPortLink     = 30 * 24 * time.Hour
)

// PortEnd is the text message on the WebSocket of a port that ends the data of its sender, who still reads. Binary
// messages are the data.
const PortEnd = "end"
