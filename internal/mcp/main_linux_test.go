package mcp

import (
	"os"
	"testing"

	"github.com/recluse-dev/recluse/internal/server/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }
