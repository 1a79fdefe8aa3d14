# bash completion for proxyc: source <(proxyc completion bash)
_proxyc() {
	local line=${COMP_LINE:0:COMP_POINT} words
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	# bash ends words at "=" and ":" as well, and wants what comes after that.
	local cur=${COMP_WORDS[COMP_CWORD]} word=${words[-1]} before
	[[ $cur == [=:] ]] && cur=""
	before=${word%"$cur"}
	local IFS=$'\n'
	COMPREPLY=($(proxyc __complete "${words[@]:1}" 2>/dev/null | cut -f1))
	COMPREPLY=("${COMPREPLY[@]#"$before"}")
	[[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
	return 0
}
complete -o default -F _proxyc proxyc
