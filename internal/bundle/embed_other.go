//go:build bundle && !linux

package bundle

import "embed"

const filesDir = "guests"

// files is filled by pack: manifest.json, and the compressed guest for each architecture of Docker engines. The engine
// is not included, because it runs only on Linux.
//
//go:embed guests/manifest.json guests/*.zst
var files embed.FS
