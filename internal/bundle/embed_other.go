//go:build bundle && !linux

package bundle

import "embed"

const filesDir = "guests"

// files is filled by pack: manifest.json, and the compressed guest for each kind of machine that containers may be on. The engine runs on Linux alone.
//
//go:embed guests/manifest.json guests/*.zst
var files embed.FS
