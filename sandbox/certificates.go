package sandbox

import (
	"maps"
	"os"
)

// hostBundle is where the default root file system has the certificates of authorities that the host trusts.
const hostBundle = "/etc/ssl/certs/ca-certificates.crt"

// Certifier is implemented by machines whose guest can add the certificates of the host to those of an image.
type Certifier interface {
	// CertificatesFile returns the file inside with the certificates of both; empty: the root file system is that of the
	// host, and has its certificates.
	CertificatesFile() string
}

// hostCertificates returns the certificates of authorities that the host trusts, in PEM; empty: none are known.
func hostCertificates() []byte {
	for _, path := range []string{
		hostBundle,                         // Debian, Arch
		"/etc/pki/tls/certs/ca-bundle.crt", // Fedora, RHEL
		"/etc/ssl/ca-bundle.pem",           // SUSE
		"/etc/ssl/cert.pem",                // Alpine, macOS
	} {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			return text
		}
	}
	return nil
}

// addedCertificates returns the certificates that the guest has to add to those of the image.
func addedCertificates(m Machine) []byte {
	if c, ok := m.(Certifier); ok && c.CertificatesFile() != "" {
		return hostCertificates()
	}
	return nil
}

// networkEnv returns the environment of a sandbox with variables for programs that use the network. Without a network,
// package managers do not try again, nor look for newer versions of themselves, because that only takes time. With one,
// programs with certificates of their own also trust those of the host, such as that of a company's proxy. The caller's
// variables take precedence.
func networkEnv(m Machine, spec Spec) map[string]string {
	if _, ok := m.(Networker); !ok {
		return spec.Env
	}
	add := map[string]string{}
	file := hostBundle
	if c, ok := m.(Certifier); ok && c.CertificatesFile() != "" {
		if file = c.CertificatesFile(); len(hostCertificates()) == 0 {
			file = "" // the guest adds nothing, so the file does not exist
		}
	}
	switch {
	case spec.Network.IsNone():
		maps.Copy(add, map[string]string{
			"PIP_RETRIES":                   "0",
			"PIP_DISABLE_PIP_VERSION_CHECK": "1",
			"npm_config_fetch_retries":      "0",
			"npm_config_update_notifier":    "false",
		})
	case file != "":
		for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"} {
			add[name] = file
		}
	}
	maps.Copy(add, spec.Env)
	return add
}
