package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/service"
)

const (
	module   = "github.com/hawser-ha/hawser"
	linesMax = 800
)

// root is the folder of the module, seen from here.
var root = filepath.Join("..", "..")

type pkg struct {
	ImportPath, Dir                    string
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
}

// packages lists the module's packages.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// within tells whether path is dir of this module or below it.
func within(path, dir string) bool {
	return path == module+"/"+dir || strings.HasPrefix(path, module+"/"+dir+"/")
}

func TestImportsPointOneWay(t *testing.T) {
	rules := []struct {
		from  string
		never []string
		but   []string
	}{
		{"replicator", []string{"agent", "cmd", "fencing", "test"}, nil},
		{"agent", []string{"replicator", "cmd", "test"}, []string{"replicator/control"}},
		{"fencing", []string{"agent", "replicator", "cmd", "test"}, nil},
		{"cmd", []string{"test"}, nil},
	}
	for _, p := range packages(t) {
		for _, r := range rules {
			if !within(p.ImportPath, r.from) {
				continue
			}
			for _, i := range p.Imports {
				bad := slices.ContainsFunc(r.never, func(n string) bool { return within(i, n) })
				good := slices.ContainsFunc(r.but, func(b string) bool { return within(i, b) })
				if bad && !good {
					t.Errorf("%s imports %s: imports point from cmd to agent to replicator/control", p.ImportPath, i)
				}
			}
		}
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "github.com/spf13/viper") && !within(p.ImportPath, "agent/config") {
				t.Errorf("%s imports viper: only agent/config does", p.ImportPath)
			}
		}
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "go.etcd.io/etcd/client/v3") && !within(p.ImportPath, "agent/etcd") {
				t.Errorf("%s imports the etcd client: only agent/etcd does", p.ImportPath)
			}
			if strings.HasPrefix(i, "go.etcd.io/etcd/server/v3") && !within(p.ImportPath, "agent/etcdmember") {
				t.Errorf("%s imports the etcd server: only agent/etcdmember does", p.ImportPath)
			}
			if i == module+"/agent/etcdmember" && p.ImportPath == module+"/agent" {
				t.Errorf("%s runs etcd in the agent's process: a panic of etcd would end it", p.ImportPath)
			}
		}
		base := filepath.Base(p.ImportPath)
		if slices.Contains([]string{"util", "utils", "common", "types", "helpers", "misc"}, base) {
			t.Errorf("%s: a helper lives with its first user", p.ImportPath)
		}
	}
}

// pure packages replay a whole life from one seed: no clock, no chance, no goroutine, no I/O.
var pure = []string{"replicator/core", "replicator/genid", "replicator/bitmap", "replicator/actlog", "replicator/wire", "replicator/pace", "agent/drbdconf", "agent/compat", "agent/pacemaker"}

func TestPurePackagesArePure(t *testing.T) {
	banned := []string{"os", "os/exec", "net", "net/http", "io/fs", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "sync", "sync/atomic",
		"syscall", "golang.org/x/sys/unix", "context", "runtime"}
	seen := 0
	for _, p := range packages(t) {
		if !slices.ContainsFunc(pure, func(dir string) bool { return p.ImportPath == module+"/"+dir }) {
			continue
		}
		seen++
		for _, i := range p.Imports {
			if slices.Contains(banned, i) {
				t.Errorf("%s is pure and imports %s", p.ImportPath, i)
			}
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Error(err)
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine in a pure package", fset.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker", "Tick", "AfterFunc"}, n.Sel.Name) {
						t.Errorf("%s: time.%s in a pure package", fset.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if seen != len(pure) {
		t.Errorf("found %d of %d pure packages", seen, len(pure))
	}
}

func TestEveryPackageHasADocFile(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 || strings.Contains(p.ImportPath, "/testdata/") || within(p.ImportPath, "cmd") {
			continue
		}
		found := false
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Error(err)
				continue
			}
			found = found || f.Doc != nil
		}
		if !found {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// files calls each for the project's own files with one of the suffixes.
func files(t *testing.T, each func(path string, data []byte), suffixes ...string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == ".git" || name == "bin" || name == "dist" || name == "testdata") {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() || !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		each(path, data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoFileIsTooLong(t *testing.T) {
	files(t, func(path string, data []byte) {
		if n := bytes.Count(data, []byte("\n")); n > linesMax {
			t.Errorf("%s has %d lines: past %d it is two ideas", path, n, linesMax)
		}
	}, ".go", ".sh")
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksInDocumentsResolve(t *testing.T) {
	files(t, func(path string, data []byte) {
		for _, m := range link.FindAllSubmatch(data, -1) {
			target, _, _ := strings.Cut(string(m[1]), "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", path, m[1])
			}
		}
	}, ".md")
}

func TestSampleFilesLoad(t *testing.T) {
	node, err := config.LoadNode(filepath.Join(root, "etc", "hawser.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := config.DefaultNode(); !reflect.DeepEqual(node, want) {
		t.Errorf("etc/hawser.yaml does not show the defaults: %+v, want %+v", node, want)
	}
	data, err := os.ReadFile(filepath.Join(root, "etc", "r0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := config.Parse("r0.yaml", data)
	if err != nil || len(res) != 1 {
		t.Fatalf("etc/r0.yaml: %v", err)
	}
	for _, n := range res[0].Nodes {
		if _, err := res[0].Definition(n.Name); err != nil {
			t.Errorf("etc/r0.yaml on %s: %v", n.Name, err)
		}
	}
}

// The samples with services load together, and what they ask of resource agents these agents have.
func TestSampleServicesLoad(t *testing.T) {
	set, err := config.Load(filepath.Join(root, "etc", "services"))
	if err != nil || len(set.Resources) == 0 {
		t.Fatal(set, err)
	}
	for i := range set.Resources {
		r := &set.Resources[i]
		if _, err := r.Definition("alpha"); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
		for _, s := range r.ServiceChain("primary") {
			if s.Kind != config.ServiceOCF {
				continue
			}
			if _, err := service.ReadMeta(t.Context(), "", s.What); err != nil {
				t.Errorf("%s: ocf:%s: %v (make deps)", r.Name, s.What, err)
			}
		}
		if err := service.CheckAgents(t.Context(), "", r); err != nil {
			t.Error(err)
		}
	}
}

// TestExampleInTheREADMELoads: the first thing a reader copies must work.
func TestExampleInTheREADMELoads(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), "    resource: r0\n")
	if !ok {
		t.Fatal("the README shows no resource")
	}
	text := "resource: r0\n"
	for line := range strings.Lines(rest) {
		body, indented := strings.CutPrefix(line, "    ")
		if !indented {
			break
		}
		text += body
	}
	if res, err := config.Parse("README.md", []byte(text)); err != nil || len(res) != 1 {
		t.Errorf("%v\n%s", err, text)
	}
}
