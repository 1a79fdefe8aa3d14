package disk

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// Links of other users in a directory such as /tmp are not followed, as with fs.protected_symlinks.
func TestWriteFollowsLinks(t *testing.T) {
	applytest.RequireRoot(t)
	const nobody = 65534
	for name, c := range map[string]struct {
		mode       os.FileMode
		dir, link  int    // owners
		to         string // of the link; "" is a file
		write, via string // the path to write, in the directory; a link to the link
		refused    bool
	}{
		"own link":                      {mode: 0o777 | os.ModeSticky},
		"foreign link":                  {mode: 0o777 | os.ModeSticky, link: nobody, refused: true},
		"foreign link to a link":        {mode: 0o777 | os.ModeSticky, link: nobody, via: "second", refused: true},
		"link of the directory":         {mode: 0o777 | os.ModeSticky, dir: nobody, link: nobody},
		"foreign link in a usual one":   {mode: 0o755, link: nobody},
		"foreign link that is a parent": {mode: 0o777 | os.ModeSticky, link: nobody, to: ".", write: "link/file", refused: true},
		"foreign link to a device":      {mode: 0o777 | os.ModeSticky, link: nobody, to: "/dev/null", refused: true},
		"own link to a device":          {mode: 0o777 | os.ModeSticky, to: "/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			target, shared := filepath.Join(t.TempDir(), "target"), t.TempDir()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(os.WriteFile(target, []byte("old"), 0o600))
			if c.to == "" {
				c.to = target
			}
			link := filepath.Join(shared, "link")
			must(os.Symlink(c.to, link))
			must(os.Lchown(link, c.link, c.link))
			must(os.Chown(shared, c.dir, c.dir))
			must(os.Chmod(shared, c.mode))
			write := link
			if c.via != "" {
				write = filepath.Join(shared, c.via)
				must(os.Symlink("link", write))
			}
			if c.write != "" {
				write = filepath.Join(shared, c.write)
			}
			err := Write(OS{}, write, Everybody, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err })
			if refused := err != nil && strings.Contains(err.Error(), link+": is not followed"); refused != c.refused || !refused && err != nil {
				t.Errorf("written: %v", err)
			}
			want := map[bool]string{true: "old", false: "new"}[c.refused]
			if got, _ := os.ReadFile(target); c.to == target && string(got) != want {
				t.Errorf("the target is %q, want %q", got, want)
			}
			if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link was replaced: %v", err)
			}
			if err := (OS{}).MkdirAll(write); c.refused && (err == nil || !strings.Contains(err.Error(), "is not followed")) {
				t.Errorf("directory: %v", err)
			}
		})
	}
}
