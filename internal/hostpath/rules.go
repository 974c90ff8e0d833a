package hostpath

import (
	"bufio"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// systemTrees are refused on every host, whether they exist or not.
var systemTrees = []Rule{
	{"/etc", "the host's configuration and password hashes"},
	{"/root", "the administrator's files"},
	{"/proc", "the host's processes"},
	{"/sys", "the host's kernel settings"},
	{"/dev", "the host's devices"},
	{"/boot", "the host's kernel"},
	{"/efi", "the host's boot loader"},
	{"/run", "the sockets of the host's services"},
	{"/var/run", "the sockets of the host's services"},
	{"/var/lib/cloud", "the instance's start-up secrets"},
	{"/var/lib/sss", "cached log-in data"},
	{"/var/spool/cron", "commands that the host runs by itself"},
}

// darwinTrees are also refused on macOS. There, /etc and /var are below /private, which resolving finds, and root has
// another home directory.
var darwinTrees = []Rule{
	{"/System", "the operating system"},
	{"/Library", "the host's configuration and keychains"},
	{"/private/var/root", "the administrator's files"},
	{"/private/var/db", "the host's accounts and secrets"},
}

// containerTrees hold the state of container engines, of virtual machines and of their managers.
var containerTrees = []string{
	"/var/lib/docker",
	"/var/lib/containerd",
	"/var/lib/containers",
	"/var/lib/crio",
	"/var/lib/kubelet",
	"/var/lib/rancher",
	"/var/lib/k0s",
	"/var/lib/lxc",
	"/var/lib/lxd",
	"/var/lib/incus",
	"/var/lib/machines",
	"/var/lib/libvirt",
	"/var/lib/nomad",
	"/var/lib/buildkit",
	"/var/lib/cni",
	"/var/lib/etcd",
	"/var/snap/microk8s",
	"/var/snap/docker",
	"/var/snap/lxd",
}

// keyFolders hold credentials, relative to a home directory.
var keyFolders = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".minikube", ".helm", ".oci", ".ibmcloud",
	".config/gcloud", ".config/gh", ".config/hub", ".config/op", ".config/rclone", ".config/doctl", ".config/containers",
	".config/helm", ".config/sops", ".config/age", ".config/git/credentials", ".config/google-chrome", ".config/chromium",
	".config/autostart", ".config/systemd",
	".local/share/keyrings", ".local/share/containers", ".local/share/docker", ".terraform.d", ".mozilla", ".thunderbird",
	".netrc", ".git-credentials", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".vault-token", ".s3cfg", ".boto",
	".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml",
	"Library/Keychains", "Library/Cookies",
}

// keyNames are refused as a part of any path, because backups and unusual home directories have such folders, too.
var keyNames = map[string]bool{
	".ssh":            true,
	".gnupg":          true,
	".aws":            true,
	".azure":          true,
	".kube":           true,
	".docker":         true,
	".password-store": true,
}

// keyFiles are the names of files whose purpose is to hold credentials. They are refused in any directory, like
// keyNames, unless they are directories. .npmrc is not among them, because most projects have a .npmrc without a token:
// see npmToken.
var keyFiles = map[string]bool{
	".netrc":           true,
	"_netrc":           true,
	".git-credentials": true,
	".pgpass":          true,
	".my.cnf":          true,
	".pypirc":          true,
	".dockercfg":       true,
	".vault-token":     true,
	".s3cfg":           true,
	".boto":            true,
	"id_rsa":           true,
	"id_dsa":           true,
	"id_ecdsa":         true,
	"id_ecdsa_sk":      true,
	"id_ed25519":       true,
	"id_ed25519_sk":    true,
}

// npmToken matches a credential in a .npmrc. It does not match a reference to an environment variable, such as
// ${NPM_TOKEN}.
var npmToken = sync.OnceValue(func() *regexp.Regexp { // compiled only if a .npmrc is found
	return regexp.MustCompile(`(?m)^[ \t]*(?:[^#;\s=]*:)?(?:_authToken|_auth|_password)[ \t]*=[ \t]*["']?[^\s"'$]`)
})

// maxNpmrc is the maximum size of a .npmrc. A longer file is refused.
const maxNpmrc = 64 << 10

// isKeyFile reports whether a file holds credentials, by its name and, for .npmrc, by its content.
func isKeyFile(path string, mode fs.FileMode) bool {
	name := filepath.Base(path)
	if name != ".npmrc" {
		return !mode.IsDir() && keyFiles[name]
	}
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNpmrc+1))
	return err != nil || len(text) > maxNpmrc || npmToken().Match(text)
}

// socketNames are the names of sockets that give control of the host. A directory that contains one of them is refused.
var socketNames = []string{
	"docker.sock", "containerd.sock", "crio.sock", "podman.sock", "buildkitd.sock", "cri-dockerd.sock", "dockershim.sock",
	"kubelet.sock", "lxd.socket", "unix.socket", "libvirt-sock", "nerdctl.sock", "rootlesskit.sock",
}

// socketVariables are environment variables that hold the address of a socket of the user.
var socketVariables = []string{
	"DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS", "BUILDKIT_HOST", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS",
}

// Default returns the policy of this host: the system's trees, the home directories in /etc/passwd, $HOME and all below
// /home, and sockets in the environment. It reads /etc/passwd and the environment each time, because users may change.
func Default() *Policy {
	p := &Policy{Trees: slices.Clone(systemTrees), HomeBases: []string{"/home", "/var/home", "/export/home"}}
	for _, path := range containerTrees {
		p.Trees = append(p.Trees, Rule{path, "the state of other containers"})
	}
	switch runtime.GOOS {
	case "darwin":
		p.Trees = append(p.Trees, darwinTrees...)
		p.HomeBases = append(p.HomeBases, "/Users")
	case "windows":
		p.Trees = windowsTrees()
		p.HomeBases = nil
		if profile := os.Getenv("USERPROFILE"); profile != "" {
			p.HomeBases = []string{filepath.Dir(profile)}
		}
	}
	p.Homes = passwdHomes("/etc/passwd")
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		p.Homes = append(p.Homes, home)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		p.Refuse(dir, "the sockets of the user's services")
	}
	for _, name := range socketVariables {
		if path := socketPath(os.Getenv(name)); path != "" {
			p.Refuse(path, "the socket of $"+name)
		}
	}
	for name, reason := range map[string]string{
		"KUBECONFIG":    "cluster credentials",
		"DOCKER_CONFIG": "registry credentials",
	} {
		for _, path := range filepath.SplitList(os.Getenv(name)) {
			if filepath.IsAbs(path) {
				p.Refuse(path, reason)
			}
		}
	}
	return p
}

func windowsTrees() []Rule {
	var trees []Rule
	for _, name := range []string{"SystemRoot", "ProgramData"} {
		if dir := os.Getenv(name); dir != "" {
			trees = append(trees, Rule{dir, "the operating system's files"})
		}
	}
	return trees
}

// socketPath returns the path in an address such as unix:///run/docker.sock or unix:path=/run/bus,guid=1, or "".
func socketPath(address string) string {
	for _, prefix := range []string{"unix://", "unix:path=", "unix:"} {
		if rest, ok := strings.CutPrefix(address, prefix); ok {
			address = rest
			break
		}
	}
	address, _, _ = strings.Cut(address, ",")
	if !filepath.IsAbs(address) || strings.ContainsRune(address, 0) {
		return ""
	}
	return filepath.Clean(address)
}

// passwdHomes returns the home directories in a passwd file. Home directories such as "/" and "/bin" are included:
// their key folders cost nothing to check, and services keep their keys there.
func passwdHomes(file string) []string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var homes []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Split(sc.Text(), ":")
		if len(fields) < 6 || !filepath.IsAbs(fields[5]) {
			continue
		}
		homes = append(homes, filepath.Clean(fields[5]))
	}
	return homes
}
