package server_test

import (
	"os"
	"testing"

	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
)

func TestMain(m *testing.M) {
	if servertest.IsChild() {
		server.DieOverAnswers()
	}
	os.Exit(servertest.Main(m))
}
