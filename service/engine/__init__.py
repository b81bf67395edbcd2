"""Tokens to tokens: queue, lanes, scheduler, runner and cache. Knows neither text nor gRPC.

The life of a sequence (one text of a request):

    submit      any thread puts it into the queue, or is refused
    schedule    before each step the scheduler drops the dead and admits waiting sequences while they fit
    run         the runner encodes what was admitted into free cache rows, sources of like length together, then
                steps all rows once
    update      the scheduler takes each row's new token; a row that is finished leaves, and the last row
                takes its place
    done        the sequence's own callback gets it, with its tokens or its error
"""
