// Package arch holds tests about the code itself: which way imports point, what pure packages may use, links in the
// documents, sample files, the size of files.
package arch
