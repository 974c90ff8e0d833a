// Package hostroot lists what a root file system that is made from this host contains: the host's programs in /usr, and
// a minimal /etc. Nothing else of the host is part of it: no /home, /root, /var, /run, and of /etc only what Etc lists.
package hostroot

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// UserName is the name inside of the user that runs commands.
const UserName = "user"

// Tops are the top-level directories that contain programs. With a merged /usr they are links into it, otherwise
// separate directories.
var Tops = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// Etc are the entries of the host's /etc that programs need and that reveal nothing about the host. They are patterns
// relative to /etc.
var Etc = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"alternatives",
	"ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted",
	"localtime", "timezone", "locale.alias",
	"debian_version", "os-release", "lsb-release", "redhat-release",
	"python3", "python3.*", "matplotlibrc", "fonts",
	"perl", "java-*", "mime.types", "magic", "magic.mime", "services", "protocols", "terminfo", "inputrc",
}

// Dirs are the empty directories of every root: mount points and directories that programs expect.
var Dirs = []string{
	".recluse", "dev", "etc", "home/user", "mnt", "opt", "proc", "root", "run/recluse", "shared", "srv", "sys", "tmp",
	"usr", "var/lib", "var/log", "var/tmp",
}

// OwnTops are the top-level directories that every sandbox has of its own. Those of a root file system made from a
// directory or an image are ignored. With a read-only root, /home is another one.
var OwnTops = []string{"proc", "sys", "dev", "tmp", "run", ".recluse"}

// OwnEtc returns the files of /etc that are not copied from the host, by name.
func OwnEtc() map[string]string {
	return map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n" +
			fmt.Sprintf("%s:x:%d:%d::%s:/bin/bash\n", UserName, v1.DefaultUID, v1.DefaultUID, v1.DefaultHome) +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         fmt.Sprintf("root:x:0:\ntty:x:5:\n%s:x:%d:\nnogroup:x:65534:\n", UserName, v1.DefaultUID),
		"hosts":         "127.0.0.1 localhost recluse\n::1 localhost\n",
		"hostname":      "recluse\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"host.conf":     "multi on\n",
		"resolv.conf":   "",
		"shells":        "/bin/sh\n/bin/bash\n",
		"machine-id":    "",
	}
}
