package files

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// Input of any size is read completely, whatever size was announced. Excessive input is not held in
// a multiple of the limit.
func TestReadAll(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789"), pieceSize/4)
	for _, size := range []int64{0, 7, int64(len(want)) - 1, int64(len(want)), int64(len(want)) + 1000} {
		for name, from := range map[string]io.Reader{"whole": bytes.NewReader(want), "halves": iotest.HalfReader(bytes.NewReader(want)), "error with data": iotest.DataErrReader(bytes.NewReader(want))} {
			left := int64(len(want) + 2000)
			got, err := readAll(from, size, &left)
			if err != nil || !bytes.Equal(got, want) || left != 2000 {
				t.Errorf("%s, size %d: %d bytes of %d, %d left, %v", name, size, len(got), len(want), left, err)
			}
		}
	}
	left := int64(len(want) - 1)
	if _, err := readAll(bytes.NewReader(want), 0, &left); !errors.Is(err, ErrTooMuch) {
		t.Errorf("one byte too much: %v", err)
	}
	left = int64(len(want))
	if _, err := readAll(iotest.ErrReader(io.ErrUnexpectedEOF), 0, &left); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an error became %v", err)
	}

	const limit = 16 * pieceSize
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			left := int64(limit)
			readAll(zeros{}, 0, &left)
		}
	})
	if got := r.AllocedBytesPerOp(); got > limit+4*pieceSize {
		t.Errorf("%d bytes allocated for a limit of %d", got, limit)
	}
}

// zeros is /dev/zero.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// The UTF-16 output of PowerShell redirections is read as text.
func TestReadUTF16(t *testing.T) {
	const want = "kind: List # \u00e9 \U0001f600\r\n"
	for name, in := range map[string]string{
		"little-endian": "\xff\xfek\x00i\x00n\x00d\x00:\x00 \x00L\x00i\x00s\x00t\x00 \x00#\x00 \x00\xe9\x00 \x00\x3d\xd8\x00\xde\r\x00\n\x00",
		"big-endian":    "\xfe\xff\x00k\x00i\x00n\x00d\x00:\x00 \x00L\x00i\x00s\x00t\x00 \x00#\x00 \x00\xe9\x00 \xd8\x3d\xde\x00\x00\r\x00\n",
		"UTF-8":         want,
	} {
		left := int64(Unlimited)
		got, err := ReadFrom(bytes.NewReader([]byte(in)), 0, &left)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}
