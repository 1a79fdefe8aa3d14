// Package prove compares two descriptions of what a node does to packets, for
// every packet and not for some.
//
// A Side tells of each packet that it is asked about with which constants it
// compared the packet's fields. All packets that are on the same side of each of
// these constants take the same way through the rules, so that one of them
// stands for the others. Compare goes through one packet of each class of both
// sides together: what it finds equal is equal for all packets.
//
// A packet is the first of a connection, as ir/sim has it. What the rules do to
// later ones, what session affinity remembers, and whether the kernel does what
// its rules say, is not part of the proof.
package prove
