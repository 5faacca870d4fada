package wire

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
)

// ErrAlgorithm is the answer to the name of a hash that is not known here.
var ErrAlgorithm = errors.New("unknown digest algorithm")

// Digest computes the digests of data-integrity-alg, csums-alg and verify-alg.
// It has no state: safe for concurrent use, and Sum allocates nothing when dst
// has room for Size more bytes.
type Digest interface {
	// Name is the name in the Linux crypto API, as in the configuration.
	Name() string
	// Size is the length of a digest in bytes, at most MaxDigest.
	Size() int
	// Sum appends the digest of data to dst.
	Sum(dst, data []byte) []byte
}

type digest struct {
	name string
	size int
	sum  func(dst, data []byte) []byte
	mac  func() hash.Hash // nil: not fit for authentication
}

func (d *digest) Name() string                { return d.name }
func (d *digest) Size() int                   { return d.size }
func (d *digest) Sum(dst, data []byte) []byte { return d.sum(dst, data) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var digests = map[string]*digest{}

func init() {
	for _, d := range []*digest{
		{"crc32c", 4, func(dst, data []byte) []byte {
			return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(data, castagnoli))
		}, nil},
		{"md5", md5.Size, func(dst, data []byte) []byte { s := md5.Sum(data); return append(dst, s[:]...) }, md5.New},
		{"sha1", sha1.Size, func(dst, data []byte) []byte { s := sha1.Sum(data); return append(dst, s[:]...) }, sha1.New},
		{"sha224", sha256.Size224, func(dst, data []byte) []byte { s := sha256.Sum224(data); return append(dst, s[:]...) }, sha256.New224},
		{"sha256", sha256.Size, func(dst, data []byte) []byte { s := sha256.Sum256(data); return append(dst, s[:]...) }, sha256.New},
		{"sha384", sha512.Size384, func(dst, data []byte) []byte { s := sha512.Sum384(data); return append(dst, s[:]...) }, sha512.New384},
		{"sha512", sha512.Size, func(dst, data []byte) []byte { s := sha512.Sum512(data); return append(dst, s[:]...) }, sha512.New},
		{"sha3-224", 28, func(dst, data []byte) []byte { s := sha3.Sum224(data); return append(dst, s[:]...) }, func() hash.Hash { return sha3.New224() }},
		{"sha3-256", 32, func(dst, data []byte) []byte { s := sha3.Sum256(data); return append(dst, s[:]...) }, func() hash.Hash { return sha3.New256() }},
		{"sha3-384", 48, func(dst, data []byte) []byte { s := sha3.Sum384(data); return append(dst, s[:]...) }, func() hash.Hash { return sha3.New384() }},
		{"sha3-512", 64, func(dst, data []byte) []byte { s := sha3.Sum512(data); return append(dst, s[:]...) }, func() hash.Hash { return sha3.New512() }},
	} {
		digests[d.name] = d
	}
}

// NewDigest finds a digest by its Linux crypto name. A name it does not know is
// ErrAlgorithm.
func NewDigest(alg string) (Digest, error) {
	if d := digests[alg]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("%q: %w", alg, ErrAlgorithm)
}

// NewHMAC is hmac(alg) keyed with the shared secret, for section 5. crc32c
// cannot authenticate and is ErrAlgorithm.
func NewHMAC(alg string, key []byte) (hash.Hash, error) {
	d := digests[alg]
	if d == nil || d.mac == nil {
		return nil, fmt.Errorf("hmac(%s): %w", alg, ErrAlgorithm)
	}
	return hmac.New(d.mac, key), nil
}
