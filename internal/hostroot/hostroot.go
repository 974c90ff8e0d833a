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

// PackageEtc are the entries of the host's /etc that the package manager needs, for sandboxes in which code may become
// root: its sources and their keys. Sources with a password are left out, and so is its configuration.
var PackageEtc = []string{
	"apt/sources.list", "apt/sources.list.d", "apt/trusted.gpg.d", "apt/keyrings",
	"debconf.conf", "dpkg/origins", "dpkg/shlibs.default", "adduser.conf", "deluser.conf", "login.defs", "ucf.conf",
}

// PackageDB is the directory with the records of installed packages, shown in the same sandboxes.
const PackageDB = "var/lib/dpkg"

// PackageDirs are the empty directories that the package manager expects.
var PackageDirs = []string{
	"etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/auth.conf.d", "etc/dpkg/dpkg.cfg.d",
	"var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/cache/debconf", "var/log/apt",
	"var/spool", "var/mail",
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
