// The parts of computenetwork.dll and vmcompute.dll that hnslib calls. Each call is sent
// over loopback to a server at port HCN_PORT, package apply/hns/hnstest. For services,
// which have no environment of their own, the port is HCN_PORT_OF_SERVICES. Numbers are
// little-endian, and a text follows its length.
//
//	call:   name, id, handle (8 bytes), text, method
//	answer: result (4 bytes), handle (8 bytes), text
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNAVAILABLE ((HRESULT)0x800706ba) // RPC_S_SERVER_UNAVAILABLE
#define CALL_FAILED ((HRESULT)0x800706be) // RPC_S_CALL_FAILED

typedef long long handle_t64;

static CRITICAL_SECTION lock;
static SOCKET conn = INVALID_SOCKET;

BOOL WINAPI DllMain(HINSTANCE dll, DWORD reason, LPVOID reserved)
{
	if (reason == DLL_PROCESS_ATTACH)
		InitializeCriticalSection(&lock);
	return TRUE;
}

static int dial(void)
{
	WSADATA data;
	struct sockaddr_in to = {0};
	const char *own = getenv("HCN_PORT"), *port = own ? own : getenv("HCN_PORT_OF_SERVICES");
	BOOL yes = TRUE;

	if (!port || WSAStartup(MAKEWORD(2, 2), &data))
		return -1;
	to.sin_family = AF_INET;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons((u_short)atoi(port));
	conn = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(conn, IPPROTO_TCP, TCP_NODELAY, (char *)&yes, sizeof yes);
	return connect(conn, (struct sockaddr *)&to, sizeof to);
}

static void hang_up(void)
{
	closesocket(conn);
	conn = INVALID_SOCKET;
}

static int put(const void *from, int length)
{
	const char *c = from;

	while (length > 0) {
		int sent = send(conn, c, length, 0);

		if (sent <= 0)
			return -1;
		c += sent;
		length -= sent;
	}
	return 0;
}

static int get(void *to, int length)
{
	char *c = to;

	while (length > 0) {
		int got = recv(conn, c, length, 0);

		if (got <= 0)
			return -1;
		c += got;
		length -= got;
	}
	return 0;
}

static int put_text(const char *text, int length)
{
	return put(&length, 4) || put(text, length);
}

static int put_wide(PCWSTR text)
{
	int length = text ? WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL) - 1 : 0;
	char *utf8 = malloc(length + 1);
	int failed;

	if (length > 0)
		WideCharToMultiByte(CP_UTF8, 0, text, -1, utf8, length + 1, NULL, NULL);
	failed = put_text(utf8, length);
	free(utf8);
	return failed;
}

// wide returns a text that the caller frees with CoTaskMemFree.
static PWSTR wide(const char *utf8, int length)
{
	int n = MultiByteToWideChar(CP_UTF8, 0, utf8, length, NULL, 0);
	PWSTR text = CoTaskMemAlloc(sizeof(WCHAR) * (n + 1));

	MultiByteToWideChar(CP_UTF8, 0, utf8, length, text, n);
	text[n] = 0;
	return text;
}

static HRESULT exchange(const char *name, const char *id, handle_t64 handle, PCWSTR text, PCWSTR method,
			handle_t64 *made, char **out, int *length)
{
	HRESULT result;

	if (conn == INVALID_SOCKET && dial()) {
		hang_up();
		return UNAVAILABLE;
	}
	if (put_text(name, (int)strlen(name)) || put_text(id, (int)strlen(id)) || put(&handle, 8) || put_wide(text) || put_wide(method) ||
	    get(&result, 4) || get(made, 8) || get(length, 4)) {
		hang_up();
		return CALL_FAILED;
	}
	*out = malloc(*length + 1);
	if (get(*out, *length)) {
		free(*out);
		*out = NULL;
		hang_up();
		return CALL_FAILED;
	}
	return result;
}

static HRESULT call(const char *name, const GUID *id, handle_t64 handle, PCWSTR text, PCWSTR method, handle_t64 *made, PWSTR *answer)
{
	char guid[40] = "", *out = NULL;
	handle_t64 given = 0;
	int length = 0;
	HRESULT result;

	if (id)
		sprintf(guid, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", id->Data1, id->Data2, id->Data3, id->Data4[0],
			id->Data4[1], id->Data4[2], id->Data4[3], id->Data4[4], id->Data4[5], id->Data4[6], id->Data4[7]);
	EnterCriticalSection(&lock);
	result = exchange(name, guid, handle, text, method, &given, &out, &length);
	LeaveCriticalSection(&lock);
	if (made)
		*made = given;
	if (answer)
		*answer = out && length > 0 ? wide(out, length) : NULL;
	free(out);
	return result;
}

#define EXPORT __declspec(dllexport) HRESULT WINAPI

static void no_record(PWSTR *record)
{
	if (record)
		*record = NULL;
}

#define OBJECTS(KIND) \
	EXPORT HcnEnumerate##KIND##s(PCWSTR query, PWSTR *ids, PWSTR *record) \
	{ no_record(record); return call("Enumerate" #KIND, NULL, 0, query, NULL, NULL, ids); } \
	EXPORT HcnOpen##KIND(const GUID *id, handle_t64 *handle, PWSTR *record) \
	{ no_record(record); return call("Open" #KIND, id, 0, NULL, NULL, handle, NULL); } \
	EXPORT HcnModify##KIND(handle_t64 handle, PCWSTR settings, PWSTR *record) \
	{ no_record(record); return call("Modify" #KIND, NULL, handle, settings, NULL, NULL, NULL); } \
	EXPORT HcnQuery##KIND##Properties(handle_t64 handle, PCWSTR query, PWSTR *properties, PWSTR *record) \
	{ no_record(record); return call("Query" #KIND, NULL, handle, query, NULL, NULL, properties); } \
	EXPORT HcnDelete##KIND(const GUID *id, PWSTR *record) \
	{ no_record(record); return call("Delete" #KIND, id, 0, NULL, NULL, NULL, NULL); } \
	EXPORT HcnClose##KIND(handle_t64 handle) \
	{ return call("Close" #KIND, NULL, handle, NULL, NULL, NULL, NULL); }

OBJECTS(Network)
OBJECTS(Endpoint)
OBJECTS(LoadBalancer)

EXPORT HcnCreateNetwork(const GUID *id, PCWSTR settings, handle_t64 *handle, PWSTR *record)
{
	no_record(record);
	return call("CreateNetwork", id, 0, settings, NULL, handle, NULL);
}

EXPORT HcnCreateLoadBalancer(const GUID *id, PCWSTR settings, handle_t64 *handle, PWSTR *record)
{
	no_record(record);
	return call("CreateLoadBalancer", id, 0, settings, NULL, handle, NULL);
}

EXPORT HcnCreateEndpoint(handle_t64 network, const GUID *id, PCWSTR settings, handle_t64 *handle, PWSTR *record)
{
	no_record(record);
	return call("CreateEndpoint", id, network, settings, NULL, handle, NULL);
}

EXPORT HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *answer)
{
	return call("HNSCall", NULL, 0, path, method, NULL, answer);
}
