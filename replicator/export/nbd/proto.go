package nbd

// Magic numbers of the protocol.
const (
	magicServer     = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption     = 0x49484156454f5054 // "IHAVEOPT"
	magicOptReply   = 0x0003e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
)

// Handshake flags, the same bits in both directions.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Options of the handshake.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMetaContext = 9
	optSetMetaContext  = 10
)

// Option replies.
const (
	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4

	repErrUnsup   = 1<<31 + 1
	repErrPolicy  = 1<<31 + 2
	repErrInvalid = 1<<31 + 3
	repErrTLSReqd = 1<<31 + 5
	repErrUnknown = 1<<31 + 6
	repErrTooBig  = 1<<31 + 9
)

// Information types of INFO and GO.
const (
	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Transmission flags.
const (
	tflagHasFlags    = 1 << 0
	tflagFlush       = 1 << 2
	tflagFUA         = 1 << 3
	tflagRotational  = 1 << 4
	tflagTrim        = 1 << 5
	tflagWriteZeroes = 1 << 6
	tflagDF          = 1 << 7
	tflagMultiConn   = 1 << 8
	tflagCache       = 1 << 10
	tflagFastZero    = 1 << 11
)

// Commands.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7
	cmdCount       = 8
)

// Command flags.
const (
	cflagFUA      = 1 << 0
	cflagNoHole   = 1 << 1
	cflagDF       = 1 << 2
	cflagReqOne   = 1 << 3
	cflagFastZero = 1 << 4
)

// legalFlags are the command flags each command knows.
var legalFlags = [cmdCount]uint16{
	cmdRead:        cflagFUA | cflagDF,
	cmdWrite:       cflagFUA,
	cmdDisc:        cflagFUA,
	cmdFlush:       cflagFUA,
	cmdTrim:        cflagFUA,
	cmdCache:       cflagFUA,
	cmdWriteZeroes: cflagFUA | cflagNoHole | cflagFastZero,
	cmdBlockStatus: cflagFUA | cflagReqOne,
}

// Structured reply chunks.
const (
	chunkDone = 1 << 0

	chunkNone        = 0
	chunkOffsetData  = 1
	chunkBlockStatus = 5
	chunkError       = 1<<15 + 1
)

// Flags of base:allocation.
const (
	stateHole = 1 << 0
	stateZero = 1 << 1
)

// The only error numbers that go on the wire.
const (
	eOK       = 0
	eIO       = 5
	eInval    = 22
	eNoSpace  = 28
	eNotSup   = 95
	eShutdown = 108
)

// Sizes, in bytes.
const (
	requestSize    = 28
	simpleSize     = 16
	chunkSize      = 20
	dataHeaderSize = chunkSize + 8 // chunk header of OFFSET_DATA and its offset

	payloadMax       = 32 << 20 // largest READ and WRITE
	discardMax       = 64 << 20 // longer WRITEs are not read to the end but cost the connection
	nameMax          = 4096     // longest string
	optionMax        = 64 << 10 // longest option taken
	optionDiscardMax = 1 << 20  // longest option read to its end and refused
	extentsMax       = 4096     // in one BLOCK_STATUS reply
	messageMax       = 512      // longest error text sent
)

// The one meta context there is, and its id.
const (
	contextAllocation   = "base:allocation"
	contextAllocationID = 1
)
