package ir

import "strconv"

func utoa(n uint16) string { return strconv.FormatUint(uint64(n), 10) }

func atou(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}
