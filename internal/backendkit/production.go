package backendkit

import (
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// RefuseInProduction returns an error with sandbox.CodeConsentMissing if RECLUSE_ENV says production, which
// takes no consent to what weakens isolation. If what is empty it refuses only a misspelt RECLUSE_ENV.
func RefuseInProduction(op, what, remedy string) error {
	production, err := backend.Production()
	if err != nil || !production || what == "" {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeConsentMissing, Op: op, Message: "RECLUSE_ENV=production forbids " + what, Remedy: remedy,
	}
}
