# fish completion for proxyc: proxyc completion fish | source
function __proxyc_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found (proxyc __complete $words[2..] "$word" 2>/dev/null)
    if test (count $found) -eq 0
        set -l flag (string match -r '^--[^=]*=' -- "$word")
        string replace -r '^' -- "$flag" (__fish_complete_path (string replace -- "$flag" '' "$word"))
    else
        string join \n -- $found
    end
end
complete -c proxyc -f -a '(__proxyc_complete)'
