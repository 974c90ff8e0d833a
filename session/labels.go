package session

import "strings"

// Limits of a session's labels.
const (
	maxLabels     = 64
	maxLabelBytes = 256 // of a name, and of a value
)

// checkLabels rejects invalid labels.
func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("check labels", "%d labels exceed the limit of %d", len(labels), maxLabels)
	}
	for name, value := range labels {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00\n") || len(name) > maxLabelBytes:
			return invalid("check labels", "invalid label name %.80q", name)
		case strings.HasPrefix(name, "recluse."):
			return invalid("check labels",
				"label %.80q: names that begin with recluse. are reserved for the server", name)
		case strings.ContainsAny(value, "\x00\n") || len(value) > maxLabelBytes:
			return invalid("check labels",
				"label %q: the value must be one line of at most %d bytes", name, maxLabelBytes)
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
