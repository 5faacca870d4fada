package params

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func read(t *testing.T, name string) *Agent {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".xml"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhatDebiansAgentsSay(t *testing.T) {
	for _, tc := range []struct {
		name, plug string
		actions    string
	}{
		{"fence_ipmilan", "plug", "on off reboot status monitor"},
		{"fence_apc", "plug", "on off reboot status monitor list"},
		{"fence_legacy", "port", "on off reboot status list"},
		{"fence_kdump", "", "off monitor"},
		{"fence_scsi", "plug", "on off status monitor"},
		{"fence_azure_arm", "plug", "on off reboot status monitor list"},
	} {
		a := read(t, tc.name)
		if a.Name != tc.name && tc.name != "fence_legacy" { // it calls itself fence_pcmk
			t.Errorf("%s calls itself %s", tc.name, a.Name)
		}
		if got := a.PlugName(); got != tc.plug {
			t.Errorf("%s: plug is %q, want %q", tc.name, got, tc.plug)
		}
		for _, x := range strings.Fields(tc.actions) {
			if !a.Can(x) {
				t.Errorf("%s: cannot %s", tc.name, x)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		rule, agent string
		set         map[string]string
		plugs       bool
		want        string // parts of complaints, in order, "" for none
	}{
		{"all right", "fence_ipmilan", map[string]string{"ip": "10.0.0.1", "username": "a", "password": "b", "lanplus": "1", "power_wait": "0"}, false, ""},
		{"old names are still names", "fence_ipmilan", map[string]string{"ipaddr": "10.0.0.1", "login": "a", "passwd": "b"}, false, ""},
		{"unknown, with a hint", "fence_ipmilan", map[string]string{"usrname": "a"}, false, `no parameter "usrname"; did you mean username?`},
		{"missing", "fence_apc", map[string]string{"ip": "10.0.0.1"}, false, "needs parameter plug|needs parameter username"},
		{"an old name is not missing", "fence_apc", map[string]string{"ipaddr": "10.0.0.1", "login": "x", "port": "1"}, false, ""},
		{"a plug of its own for each node", "fence_apc", map[string]string{"ip": "10.0.0.1", "username": "x"}, true, ""},
		{"integer", "fence_ipmilan", map[string]string{"ipport": "http"}, false, `ipport: "http" is no number`},
		{"seconds", "fence_ipmilan", map[string]string{"power_wait": "soon"}, false, "no number of seconds"},
		{"boolean", "fence_ipmilan", map[string]string{"lanplus": "maybe"}, false, "neither true nor false"},
		{"select", "fence_ipmilan", map[string]string{"auth": "md6"}, false, "none of md5, password, none"},
		{"ours", "fence_ipmilan", map[string]string{"action": "off"}, false, "set by hawser"},
		{"lines", "fence_ipmilan", map[string]string{"ip": "1\naction=on"}, false, "more than one line"},
		{"case is lost in settings files", "fence_azure_arm", map[string]string{"resourcegroup": "g", "plug": "vm"}, false, ""},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			got := errors.Join(read(t, tc.agent).Check(tc.set, tc.plugs)...)
			if tc.want == "" {
				if got != nil {
					t.Fatal(got)
				}
				return
			}
			if got == nil {
				t.Fatal("accepted")
			}
			text := got.Error()
			for _, part := range strings.Split(tc.want, "|") {
				at := strings.Index(text, part)
				if at < 0 {
					t.Fatalf("%q is not in %q", part, got)
				}
				text = text[at:]
			}
		})
	}
}

func TestASecretDoesNotGetIntoAComplaint(t *testing.T) {
	a := &Agent{Name: "fence_x", Parameters: []Parameter{{Name: "password", Type: "integer"}}, Actions: []string{"off"}}
	err := errors.Join(a.Check(map[string]string{"password": "hunter2"}, false)...)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

func TestSecretNames(t *testing.T) {
	for name, want := range map[string]bool{"password": true, "passwd": true, "snmp_priv_passwd": true, "secret_key": true, "hexadecimal_kg": true, "token": true,
		"password_script": false, "token_file": false, "username": false, "ip": false, "plug": false} {
		if Secret(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestBrokenMetadata(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "no xml": "Traceback (most recent call last)", "cut": "<resource-agent name='x'><parameters>",
		"no action": "<resource-agent name='x'/>", "a name with =": "<resource-agent name='x'><parameters><parameter name='a=b'/></parameters><actions><action name='off'/></actions></resource-agent>",
	} {
		if a, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, a)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.xml")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Parse(data)
		if err != nil {
			return
		}
		if len(a.Actions) == 0 || len(a.Parameters) > listMax {
			t.Errorf("%+v", a)
		}
		set := map[string]string{}
		for _, p := range a.Parameters {
			if strings.ContainsAny(p.Name, "=\n\r") {
				t.Errorf("%q would break out of its line", p.Name)
			}
			set[p.Name] = p.Default
		}
		a.Check(set, false)
	})
}
