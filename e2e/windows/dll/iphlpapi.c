// iphlpapi.dll, with two functions that wine's lacks. Each call of these is sent over loopback to a server at
// port IPHLP_PORT, which changes the addresses of the node's namespace. The definition file with which this is
// linked forwards all other functions to wine's own library, under the name wineiphl.dll.
//
// While it is loaded, WSAIoctl also accepts SIO_UDP_NETRESET, which Go's UDP sockets require and wine 8 lacks.
//
//	call:   verb (1 byte), family (1 byte), prefix length (1 byte), interface (8 bytes), address (16 bytes)
//	answer: error (4 bytes, little-endian)
#include <winsock2.h>
#include <ws2ipdef.h>
#include <windows.h>
#include <stdlib.h>
#include <string.h>

// row is the head of MIB_UNICASTIPADDRESS_ROW.
struct row {
	SOCKADDR_INET address;
	ULONG64 luid;
	ULONG index, prefix_origin, suffix_origin, valid, preferred;
	UINT8 prefix_length, skip_as_source;
};

static DWORD call(char verb, const struct row *row)
{
	WSADATA data;
	struct sockaddr_in to = {0};
	const char *port = getenv("IPHLP_PORT");
	char out[27] = {verb};
	DWORD code = ERROR_GEN_FAILURE;
	int got = 0;
	SOCKET s;

	if (!port || WSAStartup(MAKEWORD(2, 2), &data))
		return ERROR_NOT_SUPPORTED;
	out[1] = row->address.si_family == AF_INET ? 4 : 6;
	out[2] = (char)row->prefix_length;
	memcpy(out + 3, &row->luid, 8);
	if (row->address.si_family == AF_INET)
		memcpy(out + 11, &row->address.Ipv4.sin_addr, 4);
	else
		memcpy(out + 11, &row->address.Ipv6.sin6_addr, 16);
	to.sin_family = AF_INET;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons((u_short)atoi(port));
	s = socket(AF_INET, SOCK_STREAM, 0);
	if (!connect(s, (struct sockaddr *)&to, sizeof to) && send(s, out, sizeof out, 0) == sizeof out)
		while (got < (int)sizeof code) {
			int n = recv(s, (char *)&code + got, sizeof code - got, 0);

			if (n <= 0) {
				code = ERROR_GEN_FAILURE;
				break;
			}
			got += n;
		}
	closesocket(s);
	return code;
}

#define UDP_NETRESET _WSAIOW(IOC_VENDOR, 15)

typedef int (WINAPI *ioctl_fn)(SOCKET, DWORD, LPVOID, DWORD, LPVOID, DWORD, LPDWORD, LPWSAOVERLAPPED, LPWSAOVERLAPPED_COMPLETION_ROUTINE);

static CRITICAL_SECTION lock;
static ioctl_fn theirs;
static unsigned char their_code[12], jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; // mov rax, ...; jmp rax

static int WINAPI ours(SOCKET s, DWORD code, LPVOID in, DWORD in_size, LPVOID out, DWORD out_size, LPDWORD returned,
		       LPWSAOVERLAPPED overlapped, LPWSAOVERLAPPED_COMPLETION_ROUTINE done)
{
	int result, error;

	if (code == UDP_NETRESET) {
		*returned = 0;
		return 0;
	}
	EnterCriticalSection(&lock);
	memcpy((void *)theirs, their_code, sizeof their_code);
	result = theirs(s, code, in, in_size, out, out_size, returned, overlapped, done);
	error = WSAGetLastError();
	memcpy((void *)theirs, jump, sizeof jump);
	LeaveCriticalSection(&lock);
	WSASetLastError(error);
	return result;
}

BOOL WINAPI DllMain(HINSTANCE dll, DWORD reason, LPVOID reserved)
{
	ioctl_fn fn = ours;
	DWORD before;

	if (reason != DLL_PROCESS_ATTACH)
		return TRUE;
	InitializeCriticalSection(&lock);
	theirs = (ioctl_fn)GetProcAddress(GetModuleHandleA("ws2_32.dll"), "WSAIoctl");
	if (!theirs || !VirtualProtect((void *)theirs, sizeof jump, PAGE_EXECUTE_READWRITE, &before))
		return FALSE;
	memcpy(their_code, (void *)theirs, sizeof their_code);
	memcpy(jump + 2, &fn, sizeof fn);
	memcpy((void *)theirs, jump, sizeof jump);
	return TRUE;
}

DWORD WINAPI CreateUnicastIpAddressEntry(const struct row *row) { return call('+', row); }

DWORD WINAPI DeleteUnicastIpAddressEntry(const struct row *row) { return call('-', row); }
