package iptables

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// holderOf returns the process that holds a lock on the file, from /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF
func holderOf(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line)
		if len(fields) == 8 && fields[5] == file && fields[4] != "0" && fields[4] != "-1" {
			return processName(fields[4])
		}
	}
	return ""
}
