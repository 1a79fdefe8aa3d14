// Package prove compares two descriptions of how a node handles packets, for
// every packet instead of samples.
//
// For each packet, a Side records the constants with which it compared the
// packet's fields. All packets that compare alike with each of these constants
// take the same path through the rules, so one of them represents the others.
// Compare evaluates one packet of each class of both sides together. An equal
// result is therefore equal for all packets.
//
// As in ir/sim, a packet is the first of a connection. The proof does not cover
// later packets, the state of session affinity, or whether the kernel implements
// its rules correctly.
package prove
