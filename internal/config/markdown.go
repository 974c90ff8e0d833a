package config

import (
	"fmt"
	"strings"
)

// Markdown gives docs/CONFIG.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- Written from the structs in internal/config; go test ./internal/config -update writes it anew. -->

One YAML file, ` + "`$XDG_CONFIG_HOME/recluse/config.yaml` or `~/.config/recluse/config.yaml`; `--config FILE` or `RECLUSE_CONFIG` names another" + `.
Each key can be overridden by a variable of the environment, and many by a flag; a flag wins over a variable, a variable over the file. Nothing has to be set.

A key that does not exist is an error that names its line and the nearest key that does. ` + "`recluse config show`" + ` prints every key, its value and where that comes from; secrets are redacted.
A server reads the configuration when it starts. One that was started by itself and has nothing to look after is replaced by the next call with other values, keys of models or changed files;
elsewhere ` + "`recluse server stop`" + ` makes the next call start a new one, and no session is lost by it. Relative paths are relative to the file, or in a variable to the working directory.

` + "```yaml" + `
session:
  idle: 1h
  on_idle: hibernate
pool:
  target: 8
limits:
  memory: 1g
` + "```" + `
`)
	def := Default()
	for _, s := range sections() {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n| key | default | meaning | variable |\n|---|---|---|---|\n", s.key, strings.ToUpper(s.tag.Get("doc")[:1])+s.tag.Get("doc")[1:])
		for _, f := range fields(s.key) {
			value := f.text(def)
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` |\n", f.name(), value, f.doc(), f.variable())
		}
	}
	return b.String()
}
