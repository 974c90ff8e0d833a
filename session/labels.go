package session

import "strings"

// The most that labels of a session may be.
const (
	maxLabels     = 64
	maxLabelBytes = 256 // of a name, and of a value
)

// checkLabels rejects labels that a session cannot have.
func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("check labels", "%d labels, the most is %d", len(labels), maxLabels)
	}
	for name, value := range labels {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00\n") || len(name) > maxLabelBytes:
			return invalid("check labels", "invalid name of a label %.80q", name)
		case strings.HasPrefix(name, "recluse."):
			return invalid("check labels", "label %.80q: names that begin with recluse. are kept for the server", name)
		case strings.ContainsAny(value, "\x00\n") || len(value) > maxLabelBytes:
			return invalid("check labels", "label %s: the value must be one line of at most %d bytes", name, maxLabelBytes)
		}
	}
	return nil
}

// hasLabels reports whether a session has all of these labels.
func hasLabels(have, wanted map[string]string) bool {
	for name, value := range wanted {
		if v, ok := have[name]; !ok || v != value {
			return false
		}
	}
	return true
}
