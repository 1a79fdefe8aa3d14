package apply

import (
	"errors"
	"io/fs"
	"testing"
)

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		`Get "https://10.0.0.1:6443/version": EOF`:                            `Get "https://10.0.0.1:6443/version": EOF`,
		`context "admin@cluster" does not exist`:                              `context "admin@cluster" does not exist`,
		`Get "https://me:secret@10.0.0.1:6443/version": EOF`:                  `Get "https://xxxxx@10.0.0.1:6443/version": EOF`,
		`http://secret@a and http://me:se/cr#e?t@@b`:                          `http://xxxxx@a and http://xxxxx@b`,
		`proxyc watch --master me:secret@a:1 -v 2`:                            `proxyc watch --master xxxxx@a:1 -v 2`,
		`proxyc watch --master=http://me:secret@a:1 -v 2`:                     `proxyc watch --master=xxxxx@a:1 -v 2`,
		`invalid 'proxy-url' "me:se#cret@h" for cluster "c": unsupported`:     `invalid 'proxy-url' "xxxxx@h" for cluster "c": unsupported`,
		`parse "http://me:se#cret@h": invalid port ":se" after host`:          `parse "http://xxxxx@h": is not a valid URL`,
		`invalid proxy address "me:%zz@h": parse "http://me:%zz@h": bad "%z"`: `invalid proxy address "xxxxx@h": parse "http://xxxxx@h": is not a valid URL`,
	} {
		if got := Redact(text); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
		err := RedactError(errors.Join(fs.ErrNotExist, errors.New(text)))
		if err.Error() != fs.ErrNotExist.Error()+"\n"+want || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error: %q", err)
		}
	}
	if RedactError(nil) != nil {
		t.Error("no error became one")
	}
}
