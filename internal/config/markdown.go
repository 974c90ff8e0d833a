package config

import (
	"fmt"
	"strings"
)

// introduction is the beginning of docs/CONFIG.md, with ' instead of the backquote.
const introduction = `# Configuration

<!-- Generated from internal/config: go test ./internal/config -run TestEveryKeyIsDocumented -update -->

The configuration is one YAML file: '$XDG_CONFIG_HOME/recluse/config.yaml' or
'~/.config/recluse/config.yaml'. '--config FILE' or 'RECLUSE_CONFIG' names another file. No key is
required. An environment variable overrides the file, and a flag overrides both.

'''yaml
session:
  idle: 1h
  on_idle: hibernate
pool:
  target: 8
limits:
  memory: 1g
'''

'''
recluse config show       # every key, its value and its source
'''

- An unknown key is an error, which names the line and the nearest known key.
- 'recluse config show' redacts secrets.
- Relative paths in the file are relative to the file; in a variable, to the working directory.
- Sizes are numbers with a unit: '4096', '64k', '256m' or '1.5GiB'. All units are powers of 1024.
- Durations are written '90s', '30m', '1h30m' or '7d'. Where the table says so, 'none' is also
  allowed.
- A server reads the configuration when it starts. A background server without sessions is replaced
  by the next command whose configuration, model keys or files differ. To apply a change to another
  server, run 'recluse server stop': the next command starts a new server, and sessions stay.
`

// Markdown returns the content of docs/CONFIG.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(introduction, "'", "`"))
	def := Default()
	for _, s := range sections() {
		doc := s.tag.Get("doc")
		doc = strings.ToUpper(doc[:1]) + doc[1:]
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n| key | default | meaning | variable |\n|---|---|---|---|\n", s.key, doc)
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
