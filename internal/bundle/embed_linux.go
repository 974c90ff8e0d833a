//go:build bundle

package bundle

import "embed"

const filesDir = "files"

// files is filled by pack during make build: manifest.json, and the compressed engine and guest.
//
//go:embed files/manifest.json files/*.zst
var files embed.FS
