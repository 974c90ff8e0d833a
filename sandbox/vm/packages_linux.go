package vm

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// usualPackages are the Debian packages whose versions are of interest in any system.
var usualPackages = []string{"libc6", "bash", "python3"}

// pythonLibraries are the directories in which Python finds packages, in a system.
var pythonLibraries = []string{
	"usr/lib/python3*/dist-packages", "usr/lib/python3*/site-packages",
	"usr/local/lib/python3*/dist-packages", "usr/local/lib/python3*/site-packages",
}

// packagesOf returns packages of a system with their versions: of Debian those that were asked for, and all of Python.
// Nothing is executed; packages that are not recorded are missing.
func packagesOf(top string, asked []string) []Package {
	debian := debianVersions(top)
	var all []Package
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(usualPackages, asked)))) {
		if version := debian[name]; version != "" {
			all = append(all, Package{Name: name, Version: version})
		}
	}
	seen := map[Package]bool{}
	for _, dir := range pythonLibraries {
		for _, kind := range []string{".dist-info", ".egg-info"} {
			found, _ := filepath.Glob(filepath.Join(top, dir, "*"+kind)) // the pattern is valid
			for _, f := range found {
				name, rest, _ := strings.Cut(strings.TrimSuffix(filepath.Base(f), kind), "-")
				version, _, _ := strings.Cut(rest, "-py") // an egg names the version of Python, too
				if p := (Package{Name: name, Version: version}); version != "" && !seen[p] {
					seen[p] = true
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// debianVersions returns the versions of the installed Debian packages of a system, by name.
func debianVersions(top string) map[string]string {
	f, err := os.Open(filepath.Join(top, "var/lib/dpkg/status"))
	if err != nil {
		return nil // not a Debian system
	}
	defer f.Close()
	versions, name, installed := map[string]string{}, "", false
	for lines := bufio.NewScanner(f); lines.Scan(); { // an error ends the list
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "Package":
			name, installed = value, false
		case "Status":
			installed = strings.HasSuffix(value, " installed")
		case "Version":
			if installed {
				versions[name] = value
			}
		}
	}
	return versions
}

// shownPackages is how many packages a line names.
const shownPackages = 12

// describePackages returns packages as a line for people.
func describePackages(all []Package) string {
	words := make([]string, 0, shownPackages)
	for _, p := range all[:min(len(all), shownPackages)] {
		words = append(words, p.Name+" "+p.Version)
	}
	text := strings.Join(words, ", ")
	if more := len(all) - len(words); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
